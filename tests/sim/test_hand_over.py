"""A prompt engine and a completion engine that hand sequences over, over FakeWorkers: outputs, ends, bounds, deaths.

``HEADRACE_TEST_HAND_OVERS``: how many requests are run beside random aborts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from random import Random

import pytest

from headrace._core import Scheduler
from headrace.contract.request import Request, SamplingParams
from headrace.contract.result import TokenDelta
from headrace.engine.engine import Engine
from headrace.engine.hand_over import Giver, Taker
from headrace.engine.local_hand_off import LocalHandOff
from headrace.engine.pair import PairClient
from headrace.engine.roles import RoleConfig, core_settings, make_cadence
from headrace.engine.turns import Turns
from headrace.lab.replay import replay
from headrace.obs.recorder import Recorder
from headrace.obs.recording import read_recording
from headrace.worker.fake import FakeWorker, rolling_token

DEADLINE_S = 30.0
HAND_OVERS = int(os.environ.get("HEADRACE_TEST_HAND_OVERS", "120"))


def expected(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(rolling_token(tokens))
    return tokens[len(prompt) :]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def engine_of(
    role: str,
    port: LocalHandOff,
    record: Path | None = None,
    clock: Callable[[], float] = time.monotonic,
    **limits: int,
) -> Engine:
    config = RoleConfig(role=role)
    settings = {"num_blocks": 65, "block_size": 4, "max_model_len": 200, "token_budget": 32} | limits
    settings |= core_settings(config)
    worker = FakeWorker()
    observer = None if record is None else Recorder.open(record, settings)
    relay = Giver(port, worker, clock=clock) if role == "prompt" else Taker(port, worker, observer, clock)
    return Engine(
        Scheduler(**settings),
        worker,
        cadence=make_cadence(config),
        overlap=config.overlap,
        relay=relay,
        observer=observer,
    )


def ask(name: str, prompt: list[int], max_tokens: int) -> Request:
    return Request(request_id=name, prompt_token_ids=prompt, sampling=SamplingParams(max_tokens=max_tokens))


class Stepped:
    """Both engines in this thread, ticked by hand, on a clock that stands still."""

    def __init__(self, port: LocalHandOff | None = None, record: Path | None = None, **limits: int) -> None:
        self.port = port or LocalHandOff()
        self.clock = Clock()
        files = (None, None) if record is None else (record / "prompt.jsonl", record / "completion.jsonl")
        self.prompt = engine_of("prompt", self.port, files[0], self.clock)
        self.completion = engine_of("completion", self.port, files[1], self.clock, **limits)
        self.deltas: list[TokenDelta] = []

    def tick(self, prompt: int = 1, completion: int = 1) -> None:
        for engine, count in ((self.prompt, prompt), (self.completion, completion)):
            for _ in range(count):
                self.deltas += engine.tick()

    def tokens(self, name: str) -> list[int]:
        return [token for delta in self.deltas if delta.request_id == name for token in delta.token_ids]

    def end(self, name: str) -> TokenDelta:
        [last] = [delta for delta in self.deltas if delta.request_id == name and delta.finish_reason]
        return last

    def assert_empty(self) -> None:
        for engine in (self.prompt, self.completion):
            assert engine.quiet
            assert engine.core.num_unfinished == engine.core.num_used_blocks == 0
        assert self.port.num_waiting == 0


def test_sequences_go_on_exactly_where_they_were(tmp_path: Path) -> None:
    both, random, wanted = Stepped(record=tmp_path, num_blocks=300), Random(3), {}
    for i in range(20):
        prompt = [random.randrange(9) for _ in range(random.randint(1, 60))]
        wanted[f"r{i}"] = expected(prompt, n := random.randint(1, 20))
        both.prompt.submit(ask(f"r{i}", prompt, n))
    for _ in range(300):
        both.tick()
    assert {name: both.tokens(name) for name in wanted} == wanted
    assert {both.end(name).finish_reason for name in wanted} == {"length"}
    moved = both.completion.worker.moved
    assert moved
    assert all(source and target for source, target in moved)
    both.assert_empty()
    for engine in (both.prompt, both.completion):
        engine.close()
    for name in ("prompt", "completion"):
        report = replay(read_recording(tmp_path / f"{name}.jsonl"))
        assert report.ok, report.difference


def test_a_full_port_holds_the_prompt_engine_back_and_then_ends_requests() -> None:
    both = Stepped(LocalHandOff(capacity=1, patience_s=0.05))
    for name in ("a", "b"):
        both.prompt.submit(ask(name, [1, 2, 3], 5))
    both.tick(prompt=4, completion=0)
    assert both.port.num_waiting == 1
    assert both.prompt.core.num_prompted == 1  # holds its blocks, first tokens are told
    both.clock.now = 0.06
    both.tick(prompt=2, completion=0)
    assert both.end("b").error == "no completion engine took it within 0.05 s"
    both.tick(completion=20)
    assert both.tokens("a") == expected([1, 2, 3], 5)
    both.assert_empty()


def test_one_waits_for_room_as_long_as_the_taker_gets_on() -> None:
    both = Stepped(LocalHandOff(patience_s=0.05), num_blocks=12)
    both.prompt.submit(ask("long", [1] * 20, 16))
    both.tick(2, 2)
    both.prompt.submit(ask("wide", [2] * 30, 5))
    both.tick(3, 1)
    for _ in range(20):
        both.clock.now += 0.04
        both.tick()
    assert both.tokens("long") == expected([1] * 20, 16)
    assert both.tokens("wide") == expected([2] * 30, 5)
    assert {both.end(name).finish_reason for name in ("long", "wide")} == {"length"}
    both.assert_empty()


def test_one_that_finds_no_room_beside_a_taker_that_stands_still_ends() -> None:
    both = Stepped(LocalHandOff(patience_s=0.05), num_blocks=12)
    both.completion.worker.write_blocks = lambda *_: Future()  # its KV never comes: it holds its blocks and never runs
    both.prompt.submit(ask("stuck", [1] * 20, 16))
    both.tick(2, 2)
    both.prompt.submit(ask("wide", [2] * 30, 5))
    both.tick(3, 2)
    both.clock.now = 0.06
    both.tick()
    assert both.end("wide").error == "no room for it within 0.05 s"


@pytest.mark.parametrize(("max_seqs", "num_blocks"), [(1, 300), (3, 300), (64, 12), (64, 30)])
def test_nobody_is_lost_to_a_full_engine_or_pool(max_seqs: int, num_blocks: int) -> None:
    both, names = Stepped(max_seqs=max_seqs, num_blocks=num_blocks), [f"r{i}" for i in range(24)]
    for name in names:
        both.prompt.submit(ask(name, [1, 2, 3], 30))
    turns = 0
    while not (both.prompt.quiet and both.completion.quiet) and turns < 3000:
        both.clock.now += 1.0
        both.tick()
        turns += 1
    assert {both.end(name).finish_reason for name in names} == {"length"}
    assert all(both.tokens(name) == expected([1, 2, 3], 30) for name in names)
    assert both.completion.core.num_preemptions == 0
    both.assert_empty()


def test_the_giver_waits_for_a_taker_that_gets_on_and_for_no_other() -> None:
    both = Stepped(LocalHandOff(capacity=1, patience_s=0.05), max_seqs=1)
    for name in ("a", "b", "c", "d"):
        both.prompt.submit(ask(name, [1, 2, 3], 10))
    for _ in range(10):
        both.clock.now += 0.02
        both.tick()
    assert not [delta for delta in both.deltas if delta.error]
    both.clock.now += 0.06
    both.tick(completion=0)
    assert both.end("d").error == "no completion engine took it within 0.05 s"


@pytest.mark.parametrize("turns", range(6))
def test_an_end_finds_a_sequence_wherever_it_is(turns: int) -> None:
    both = Stepped()
    both.prompt.submit(ask("a", [1, 2, 3], 100))
    for _ in range(turns // 2):
        both.tick()
    if turns % 2:
        both.tick(completion=0)
    both.port.end("a", "abort")
    for engine in (both.prompt, both.completion):
        engine.abort("a")
    both.tick(3, 3)
    assert both.end("a").finish_reason == "abort"
    both.assert_empty()


def test_a_request_without_a_prompt_engine_is_refused() -> None:
    both = Stepped()
    both.completion.submit(ask("lost", [1, 2], 3))
    both.tick()
    assert "COMPLETION engine takes sequences whose prompt was computed elsewhere" in str(both.end("lost").error)


def test_when_the_completion_engine_is_gone_prompts_end_with_the_reason() -> None:
    both = Stepped()
    for name in ("in port", "after"):
        both.prompt.submit(ask(name, [1, 2, 3], 5))
        both.tick(prompt=2, completion=0)
        if name == "in port":
            both.deltas += both.completion.close()
    both.tick(prompt=2, completion=0)
    assert both.end("in port").finish_reason == "abort"
    assert both.end("after").error == "the completion engine is gone"
    assert both.prompt.quiet


def until(condition: Callable[[], bool], turns: Turns, deltas: list[TokenDelta]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        deltas += turns.tick()


def test_a_pair_on_threads_serves_and_random_aborts_leave_nothing_behind() -> None:
    port, random = LocalHandOff(capacity=2), Random(5)
    engines = engine_of("prompt", port), engine_of("completion", port, num_blocks=300)
    client = PairClient(*engines, port)
    turns, deltas, wanted, aborted = Turns(client, 1000), [], {}, set()
    for i in range(HAND_OVERS):
        prompt = [random.randrange(9) for _ in range(random.randint(1, 40))]
        wanted[f"r{i}"] = expected(prompt, n := random.randint(1, 12))
        turns.submit(ask(f"r{i}", prompt, n))
        if random.random() < 0.3:
            deltas += turns.tick()
        if random.random() < 0.3:
            aborted.add(name := f"r{random.randrange(i + 1)}")
            turns.abort(name)
    until(lambda: turns.quiet, turns, deltas)
    for name, tokens in wanted.items():
        mine = [delta for delta in deltas if delta.request_id == name]
        got = [token for delta in mine for token in delta.token_ids]
        assert got == tokens[: len(got)]
        assert [delta.finish_reason for delta in mine if delta.finish_reason] in (["length"], ["abort"])
        assert len(got) == len(tokens) or name in aborted
    assert not client._open
    assert not port._ends
    assert all(engine.core.num_used_blocks == 0 for engine in engines)
    turns.close()
    assert not client.alive
