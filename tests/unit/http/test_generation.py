"""Generation over a pretended engine: what it keeps of what was told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.api.http.generation import Generation
from headrace.api.prompts import Prepared, Preparer
from headrace.contract.request import Request, SamplingParams
from headrace.contract.result import TokenDelta, TokenLogprobs
from headrace.obs.metrics import Metrics

SILENCE_S = 30.0


class PretendedClient:
    """Takes requests and says whatever a test has it say."""

    def __init__(self) -> None:
        self.sinks: dict[str, Callable[[TokenDelta], None]] = {}
        self.aborted: list[str] = []

    def submit(self, request: Request, sink: Callable[[TokenDelta], None]) -> None:
        self.sinks[request.request_id] = sink

    def abort(self, name: str) -> None:
        self.aborted.append(name)

    def say(self, *tokens: int, finish: str | None = None) -> None:
        """To every sequence, each token with two logprobs."""
        rows = [TokenLogprobs(token, -1.0, 1, [token, 0], [-1.0, -2.0]) for token in tokens]
        for name, sink in self.sinks.items():
            sink(TokenDelta(name, list(tokens), rows, finish_reason=finish))


def pretended() -> tuple[Any, PretendedClient]:
    client = PretendedClient()
    return SimpleNamespace(client=client, tokenizer=None), client


def prepared(**fields: Any) -> Prepared:
    return Preparer(None, 100, 64).prepare([5, 6, 7], SamplingParams(max_tokens=8, **fields))


def rows_of(keeps: bool) -> tuple[list[int], int]:
    """How many rows each news had, and how many are kept at the end."""

    async def run() -> tuple[list[int], int]:
        llm, client = pretended()
        generation = Generation(llm, [prepared(logprobs=2)], Metrics())
        generation.keeps_rows = keeps
        generation.start()
        told = []
        for tokens, finish in (([11], None), ([12, 13], None), ([14], None), ([], "length")):
            client.say(*tokens, finish=finish)
            for news in await generation.news(SILENCE_S):
                assert news.logprobs is not None
                assert [next(iter(row)) for row in news.logprobs] == news.token_ids
                told.append(len(news.logprobs))
        return told, len(generation.outputs[0].outputs[0].logprobs or [])

    return asyncio.run(run())


def test_what_a_client_no_longer_takes_counts_all_the_same() -> None:
    async def run() -> tuple[int, list[str]]:
        llm, client = pretended()
        generation = Generation(llm, [prepared()], Metrics())
        generation.start()
        client.say(11)
        await generation.news(SILENCE_S)
        client.say(12, 13)
        generation.close()
        return generation.usage.completion_tokens, client.aborted

    tokens, aborted = asyncio.run(run())
    assert tokens == 3
    assert len(aborted) == 1


def test_a_stream_forgets_logprobs_once_they_are_told() -> None:
    assert rows_of(keeps=False) == ([1, 2, 1, 0], 0)
    assert rows_of(keeps=True) == ([1, 2, 1, 0], 4)


def test_times_between_tokens_are_those_between_steps() -> None:
    """A step that brings three tokens is one gap, as vLLM has it; what belongs to a request is counted at its end."""

    async def run() -> Metrics:
        llm, client = pretended()
        metrics = Metrics()
        generation = Generation(llm, [prepared(n=2)], metrics)
        generation.start()
        for tokens, finish in (([11], None), ([12, 13, 14], None), ([15], "length")):
            client.say(*tokens, finish=finish)
            await generation.news(SILENCE_S)
        return metrics

    metrics = asyncio.run(run())
    seen = {name: sum(histogram.counts) for name, histogram in metrics.histograms.items()}
    assert seen["time_to_first_token_seconds"] == 2
    assert seen["inter_token_latency_seconds"] == 2 * 2
    assert seen["request_decode_seconds"] == seen["request_time_per_output_token_seconds"] == 2
    sums = {name: histogram.sum for name, histogram in metrics.histograms.items()}
    assert sums["request_decode_seconds"] == pytest.approx(sums["inter_token_latency_seconds"])
    assert sums["request_time_per_output_token_seconds"] == pytest.approx(sums["request_decode_seconds"] / 4)
    for name, value in (("most_generation_tokens", 5), ("choices", 2), ("max_tokens", 8)):
        assert (seen[f"request_{name}"], sums[f"request_{name}"]) == (1, value)
