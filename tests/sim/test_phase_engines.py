"""True engines in a NORMAL group of threads, over FakeWorkers: outputs, companions, ends, overlap on and off."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from headrace._core import Scheduler
from headrace.contract.errors import ConfigError, GroupBroken
from headrace.contract.request import Request, SamplingParams
from headrace.contract.result import TokenDelta
from headrace.engine.engine import Engine
from headrace.engine.lifecycle import EngineLoop
from headrace.engine.roles import RoleConfig, core_settings, make_cadence
from headrace.parallel.collectives import LocalGroup
from headrace.worker.fake import FakeWorker, rolling_token

PROMPT = [3, 1, 4, 1, 5]


def expected(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(rolling_token(tokens))
    return tokens[len(prompt) :]


def engine_of(
    config: RoleConfig, group: LocalGroup | None = None, rank: int = 0, overlap: bool = True, **limits: int
) -> Engine:
    settings = {"num_blocks": 65, "block_size": 4, "max_model_len": 200, "token_budget": 32} | limits
    settings |= core_settings(config)
    cadence = make_cadence(config, group.member(rank) if group else None)
    return Engine(Scheduler(**settings), FakeWorker(), cadence=cadence, overlap=overlap)


def request(name: str, prompt: list[int], max_tokens: int) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens)
    return Request(request_id=name, prompt_token_ids=prompt, sampling=sampling, eos_ids=())


class Running:
    """Engines of a group, each in its loop's thread; deltas are gathered per request."""

    def __init__(self, size: int, overlap: bool, timeout_s: float = 60.0, **limits: int) -> None:
        self.group = LocalGroup(size, timeout_s)
        self.engines = [engine_of(RoleConfig(role="normal"), self.group, i, overlap, **limits) for i in range(size)]
        self.deltas: list[TokenDelta] = []
        self.news = threading.Condition()
        self.loops = [EngineLoop(engine, self.take) for engine in self.engines]

    def take(self, deltas: list[TokenDelta]) -> None:
        with self.news:
            self.deltas += deltas
            self.news.notify_all()

    def submit(self, rank: int, item: Request) -> None:
        self.engines[rank].submit(item)
        for engine in self.engines:
            engine.intake.poke()

    def tokens(self, name: str) -> list[int]:
        return [token for delta in self.deltas if delta.request_id == name for token in delta.token_ids]

    def wait_for(self, count: int) -> None:
        with self.news:
            ended = lambda: sum(delta.finish_reason is not None for delta in self.deltas)  # noqa: E731
            assert self.news.wait_for(lambda: ended() >= count, timeout=60)

    def close(self) -> None:
        for loop in self.loops:
            loop._closing.set()
        for engine in self.engines:
            engine.intake.poke()
        self.group.leave()
        for loop in self.loops:
            loop.close()


@pytest.mark.parametrize("overlap", [True, False])
def test_a_group_serves_whoever_asks(overlap: bool) -> None:
    running = Running(3, overlap)
    counts = {}
    for i in range(9):
        name, prompt = f"r{i}", [*PROMPT, i]
        counts[name] = (prompt, 5 + i)
        running.submit(i % 2, request(name, prompt, 5 + i))  # rank 2 only keeps company
    running.wait_for(9)
    running.close()
    for name, (prompt, count) in counts.items():
        assert running.tokens(name) == expected(prompt, count)
    forwards = {engine.worker.num_forwards for engine in running.engines}
    assert running.engines[2].worker.num_tokens == 0
    assert max(forwards) - min(forwards) <= 2  # ranks run the same steps, but for those cut off at the close


def test_a_rank_that_dies_ends_the_others_requests() -> None:
    running = Running(2, overlap=True, num_blocks=30_000, max_model_len=100_000)
    running.submit(0, request("long", PROMPT, 90_000))
    running.loops[1]._closing.set()
    running.loops[1]._thread.join(60)
    running.group.leave()  # what a process group notices by itself
    running.wait_for(1)
    last = next(delta for delta in running.deltas if delta.finish_reason is not None)
    assert last.finish_reason == "error"
    assert "another rank left" in str(last.error)
    running.loops[0]._thread.join(60)
    assert isinstance(running.loops[0].failure, GroupBroken)
    running.close()


def test_what_can_never_be_served_ends_with_its_reason() -> None:
    engine = engine_of(RoleConfig(role="normal"))
    engine.submit(request("huge", [1] * 300, 4))
    engine.submit(request("fine", PROMPT, 2))
    deltas = [delta for _ in range(6) for delta in engine.tick()]
    ends = {delta.request_id: delta for delta in deltas if delta.finish_reason}
    assert ends["huge"].finish_reason == "error"
    assert "no room to generate" in str(ends["huge"].error)
    assert ends["huge"].error_field == "prompt"  # the fault is its own: no use to ask again
    assert ends["fine"].finish_reason == "length"
    assert engine.idle


def test_a_prompt_engine_prefills_and_keeps() -> None:
    engine = engine_of(RoleConfig(role="prompt"), overlap=False)
    engine.submit(request("one", PROMPT, 1))
    engine.submit(request("more", PROMPT[::-1], 5))
    deltas = engine.tick()
    assert {delta.request_id: delta.token_ids for delta in deltas} == {
        "one": expected(PROMPT, 1),
        "more": expected(PROMPT[::-1], 1),
    }
    assert engine.core.prompted_ids() == [2]
    assert engine.tick() == []


@pytest.mark.parametrize(
    ("knobs", "field"),
    [
        ({"role": "both"}, "role"),
        ({"role": "completion", "stop_preempted": False}, "stop_preempted"),
        ({"role": "normal", "all_interval": 0}, "all_interval"),
        ({"role": "normal", "any_interval": 0}, "any_interval"),
        ({"role": "normal", "kv_limit": 0.0}, "kv_limit"),
        ({"role": "normal", "time_budget_ns": 5}, "prefill_cost"),
        ({"role": "normal", "time_budget_ns": -5}, "time_budget_ns"),
    ],
)
def test_roles_that_cannot_work_are_refused(knobs: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        make_cadence(RoleConfig(**knobs))
    with pytest.raises(ConfigError, match=f"^{field}: "):
        core_settings(RoleConfig(**knobs))


def test_roles_say_what_they_need() -> None:
    assert core_settings(RoleConfig()) == {}
    assert core_settings(RoleConfig(role="completion"))["stop_preempted"]
    assert not core_settings(RoleConfig(role="normal"))["stop_preempted"]
    assert [RoleConfig(role=role).overlap for role in ("unified", "normal", "prompt", "completion")] == [
        True,
        True,
        False,
        True,
    ]


def test_a_prompt_that_fills_the_pool_comes_to_its_end() -> None:
    """Half prefilled, it holds more than ``kv_limit`` of the pool; nobody decodes, so nothing is to be spared."""
    engine = engine_of(RoleConfig(role="normal"), num_blocks=51, token_budget=4)
    engine.submit(request("long", list(range(190)), 5))
    deltas = [delta for _ in range(80) for delta in engine.tick()]
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["length"]
    assert engine.idle


def test_a_prompt_step_ends_where_it_was_launched() -> None:
    engine = engine_of(RoleConfig(role="normal"), overlap=True)
    engine.submit(request("one", PROMPT, 3))
    assert [delta.token_ids for delta in engine.tick()] == [expected(PROMPT, 1)]
    assert engine.tick() == []  # the decode step is in flight
