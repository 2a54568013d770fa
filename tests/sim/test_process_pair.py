"""A prompt engine and a completion engine in real processes over FakeWorkers: outputs, aborts, deaths, revival.

``HEADRACE_TEST_HAND_OVERS``: how many requests are run beside random aborts.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from role_engines import build

from headrace.contract.errors import EngineDead
from headrace.contract.request import Request, SamplingParams
from headrace.contract.result import TokenDelta
from headrace.engine.hand_over import LOST_WORDS
from headrace.engine.process import ProcessClient
from headrace.engine.process_pair import ProcessPair, _Way, children
from headrace.worker.fake import rolling_token

DEADLINE_S = 60.0
TOKEN_S = 0.002
HAND_OVERS = int(os.environ.get("HEADRACE_TEST_HAND_OVERS", "60"))


def expected(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(rolling_token(tokens))
    return tokens[len(prompt) :]


class Asker:
    """Asks the pair, and keeps what comes of each request."""

    def __init__(self, pair: ProcessPair) -> None:
        self.pair = pair
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, TokenDelta] = {}
        self._news: queue.Queue[TokenDelta] = queue.Queue()

    def ask(self, name: str, prompt: list[int], max_tokens: int) -> None:
        self.tokens[name] = []
        sampling = SamplingParams(max_tokens=max_tokens, seed=0)
        self.pair.submit(Request(request_id=name, prompt_token_ids=prompt, sampling=sampling), self._news.put)

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not done():
            delta = self._news.get(timeout=max(0.1, deadline - time.monotonic()))
            self.tokens[delta.request_id] += delta.token_ids
            if delta.finish_reason is not None:
                assert delta.request_id not in self.ends, "a second last delta"
                self.ends[delta.request_id] = delta

    def all_ended(self) -> bool:
        return len(self.ends) == len(self.tokens)


def await_empty(pair: ProcessPair) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while any(stats.used_blocks or stats.running or stats.waiting for stats in pair.rank_stats):
        assert time.monotonic() < deadline, pair.rank_stats
        time.sleep(0.02)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ProcessPair]:
    address = f"ipc://{tmp_path / 'hand-over'}"
    client = ProcessPair(children(build, [("prompt", address, TOKEN_S), ("completion", address, TOKEN_S)]))
    yield client
    client.close()
    assert not client.alive


def test_sequences_go_on_where_they_were_and_aborts_leave_nothing_behind(pair: ProcessPair) -> None:
    asker, random, wanted, aborted = Asker(pair), Random(7), {}, set()
    for i in range(HAND_OVERS):
        prompt = [random.randrange(9) for _ in range(random.randint(1, 150))]
        wanted[f"r{i}"] = expected(prompt, n := random.randint(1, 12))
        asker.ask(f"r{i}", prompt, n)
        if random.random() < 0.3:
            aborted.add(name := f"r{random.randrange(i + 1)}")
            pair.abort(name)
        if random.random() < 0.2:
            asker.until(lambda: bool(asker.ends))
    asker.until(asker.all_ended)
    for name, tokens in wanted.items():
        reason = asker.ends[name].finish_reason
        assert reason == "length" or name in aborted
        assert asker.tokens[name] == tokens[: len(asker.tokens[name])]
        assert reason == "abort" or asker.tokens[name] == tokens
    await_empty(pair)
    prompts, completions = pair.rank_stats
    assert prompts.sampled_tokens <= HAND_OVERS  # a first token each
    assert completions.prefill_steps == 0 < completions.steps
    assert not pair._ways


def test_a_dead_prompt_engine_costs_what_it_had_and_another_one_comes(pair: ProcessPair) -> None:
    asker = Asker(pair)
    asker.ask("handed over", [1, 2, 3], 400)
    asker.until(lambda: len(asker.tokens["handed over"]) > 2)  # a second token comes from the completion engine
    first, _ = pair.pids
    os.kill(first, signal.SIGSTOP)  # so that it still has the next one when it dies
    asker.ask("not yet", [4] * 3000, 5)
    os.kill(first, signal.SIGKILL)
    asker.until(asker.all_ended)
    assert asker.tokens["handed over"] == expected([1, 2, 3], 400)
    assert str(asker.ends["not yet"].error).startswith("the prompt engine: the engine process died")
    deadline = time.monotonic() + DEADLINE_S
    while pair.pids[0] == first:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    asker.ask("after", [5] * 40, 7)
    asker.until(asker.all_ended)
    assert asker.tokens["after"] == expected([5] * 40, 7)
    await_empty(pair)


def test_while_the_prompt_engine_starts_again_a_refusal_says_so(
    pair: ProcessPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, start = threading.Event(), pair._starter
    monkeypatch.setattr(pair, "_starter", lambda *given: (gate.wait(DEADLINE_S), start(*given))[1])
    os.kill(pair.pids[0] or 0, signal.SIGKILL)
    deadline = time.monotonic() + DEADLINE_S
    while pair._prompt.dead is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    words = r"^the prompt engine: the engine process died \(exit code -9\); another one is being started: try again$"
    with pytest.raises(EngineDead, match=words):
        Asker(pair).ask("meanwhile", [1], 1)
    assert pair.alive
    gate.set()


def test_a_close_that_comes_before_the_news_of_a_dead_completion_engine_tells_it(pair: ProcessPair) -> None:
    asker, completion = Asker(pair), pair._completion
    asker.ask("decoding", [1, 2, 3], 3000)
    asker.ask("prompt", [4] * 3000, 900)
    asker.until(lambda: len(asker.tokens["decoding"]) > 2)
    mourn = completion._mourn
    completion._mourn = lambda why: mourn(why) if completion._closing.wait(DEADLINE_S) else None  # type: ignore[method-assign]
    os.kill(completion.pid or 0, signal.SIGKILL)
    deadline = time.monotonic() + DEADLINE_S
    while pair.alive:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    pair.close()
    asker.until(asker.all_ended)
    words = "the completion engine: the engine process died (exit code -9)"
    assert {end.error for end in asker.ends.values()} == {words}


def test_a_dead_completion_engine_ends_everything_with_its_reason(pair: ProcessPair) -> None:
    asker = Asker(pair)
    asker.ask("decoding", [1, 2, 3], 3000)
    asker.ask("prompt", [4] * 3000, 900)
    asker.until(lambda: len(asker.tokens["decoding"]) > 2)
    os.kill(pair.pids[1], signal.SIGKILL)
    asker.until(asker.all_ended)
    assert {str(end.error).split(" (")[0] for end in asker.ends.values()} == {
        "the completion engine: the engine process died"
    }
    with pytest.raises(EngineDead, match="the completion engine: the engine process died"):
        asker.ask("more", [1], 1)


def test_an_engine_that_does_not_start_is_named_and_the_other_one_ends(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path / 'hand-over'}"
    before = set(threading.enumerate())
    with pytest.raises(EngineDead, match=r"the completion engine: .*no such model"):
        ProcessPair(children(build, [("prompt", address, TOKEN_S), ("broken", address, TOKEN_S)]))
    assert not [one for one in set(threading.enumerate()) - before if one.name == "headrace-engine-client"]


def test_a_sequence_lost_between_the_two_ends_with_the_reason(pair: ProcessPair) -> None:
    """The taker has never heard of it: it says so, once."""
    asker = Asker(pair)
    asker.ask("lost", [1, 2, 3], 2000)
    asker.until(lambda: bool(asker.tokens["lost"]))
    pair._completion.abort("lost")
    nobody = Request(request_id="nobody", prompt_token_ids=[1], sampling=SamplingParams())
    pair._completion.lose(nobody, (1,))
    heard: queue.Queue[TokenDelta] = queue.Queue()
    pair._completion.listen("nobody", heard.put)
    pair._completion.lose(nobody, (1,))
    assert heard.get(timeout=DEADLINE_S).error == LOST_WORDS
    asker.until(asker.all_ended)
    assert asker.ends["lost"].finish_reason == "abort"


def test_an_aborted_request_is_not_recalled_when_its_prompt_engine_dies(pair: ProcessPair) -> None:
    """Its end came to the completion engine first, which had never heard of it."""
    heard: queue.Queue[TokenDelta] = queue.Queue()
    for name, reason in (("aborted", "abort"), ("complete", "stop")):
        getattr(pair._completion, reason)(name)
        pair._completion.listen(name, heard.put)
        pair._completion.lose(Request(request_id=name, prompt_token_ids=[1], sampling=SamplingParams()), (1,))
        last = heard.get(timeout=DEADLINE_S)
        assert (last.request_id, last.finish_reason, last.error) == (name, reason, None)


def test_one_that_is_over_is_not_asked_for_again_when_its_prompt_engine_dies(pair: ProcessPair) -> None:
    """Its last delta is being delivered while the other engine's requests are told."""
    lost: list[str] = []
    pair._completion.lose = lambda request, _: lost.append(request.request_id)  # type: ignore[method-assign]
    news: queue.Queue[TokenDelta] = queue.Queue()
    way = _Way(Request(request_id="over", prompt_token_ids=[1], sampling=SamplingParams()), news.put)
    way.told, way.over = True, True
    prompt = SimpleNamespace(dead="the engine process died")
    pair._from_prompt(way, prompt, TokenDelta(request_id="over", finish_reason="error"))  # type: ignore[arg-type]
    assert (lost, news.empty()) == ([], True)


def test_a_prompt_engine_that_cannot_be_started_again_for_whatever_reason_ends_the_pair(
    pair: ProcessPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    asker = Asker(pair)
    asker.ask("decoding", [1, 2, 3], 3000)
    asker.until(lambda: len(asker.tokens["decoding"]) > 2)

    def broken(*_: object) -> ProcessClient:
        raise OSError("no descriptors are left")

    monkeypatch.setattr(pair, "_starter", broken)
    os.kill(pair.pids[0] or 0, signal.SIGKILL)
    asker.until(asker.all_ended)
    assert "no descriptors are left" in str(asker.ends["decoding"].error)
    assert not pair.alive
