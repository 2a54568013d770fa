"""A prompt engine's work outlives it: the completion engine's process finds it in their common store."""

from __future__ import annotations

import queue
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.api.split_processes import connect_pair
from headrace.config import resolve
from headrace.contract.request import Request, SamplingParams
from headrace.contract.result import TokenDelta
from headrace.engine.process_pair import ProcessPair

pytestmark = pytest.mark.model
DEADLINE_S = 120.0
PROMPT = [100 + i * 7 % 9000 for i in range(300)]
FIRST = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)


def tokens_of(news: queue.Queue[TokenDelta]) -> list[int]:
    out: list[int] = []
    while True:
        delta = news.get(timeout=DEADLINE_S)
        out += delta.token_ids
        if delta.finish_reason is not None:
            assert delta.finish_reason == "length", delta.error
            return out


def ask(pair: ProcessPair, name: str, params: SamplingParams) -> list[int]:
    news: queue.Queue[TokenDelta] = queue.Queue()
    pair.submit(Request(request_id=name, prompt_token_ids=PROMPT, sampling=params), news.put)
    return tokens_of(news)


def until_counted(pair: ProcessPair, rank: int, event: str, least: int) -> None:
    """An engine reports what it counts a moment later."""
    deadline = time.monotonic() + DEADLINE_S
    while pair.rank_stats[rank].kv_store.get(event, 0) < least:
        assert time.monotonic() < deadline, pair.rank_stats
        ask(pair, f"turn {time.monotonic()}", FIRST)  # a turn brings the count up to date
        time.sleep(0.05)


def test_what_a_prompt_engine_stored_goes_on_in_another_process_to_the_bit(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"kv_memory": 128 << 20, "num_threads": 2, "max_model_len": 1024, "discipline": "split"}
    pair, _ = connect_pair(resolve(settings | {"kv_store": str(tmp_path)}))
    try:
        [first] = ask(pair, "first", FIRST)  # ends at the prompt engine: the other one never had it
        until_counted(pair, 0, "saved", 2)
        news: queue.Queue[TokenDelta] = queue.Queue()
        longer = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
        pair._completion.listen("recalled", news.put)
        pair._completion.lose(Request(request_id="recalled", prompt_token_ids=PROMPT, sampling=longer), (first,))
        recalled = tokens_of(news)
        assert [first, *recalled] == ask(pair, "whole", longer)
        until_counted(pair, 1, "hit_tokens", 256)
    finally:
        pair.close()
