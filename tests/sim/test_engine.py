"""The true engine over a fake worker: loops, ends, failures, and 10,000 random operations. No model, no torch."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace._core import Scheduler
from headrace.contract.errors import EngineDead, QueueFull
from headrace.contract.request import Request, SamplingParams
from headrace.contract.result import TokenDelta
from headrace.engine.engine import Engine
from headrace.obs.launch_guard import LaunchGuard
from headrace.worker.fake import FakeWorker, rolling_token


@dataclass
class Story:
    """What the deltas told about one request."""

    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    error: str | None = None


def make(
    overlap: bool, worker: FakeWorker | None = None, max_waiting: int = 4096, observer: Any = None, **core: object
) -> Engine:
    settings: dict[str, object] = {"num_blocks": 40, "block_size": 4, "token_budget": 16, "max_seqs": 8}
    settings |= {"max_model_len": 100} | core
    options: dict[str, Any] = {"overlap": overlap, "max_waiting": max_waiting, "observer": observer}
    return Engine(Scheduler(**settings), worker or FakeWorker(), guard=LaunchGuard(on=True), **options)  # type: ignore[arg-type]


def ask(name: str, prompt: list[int], max_tokens: int = 10, eos: tuple[int, ...] = (), **kw: object) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, seed=0)
    return Request(request_id=name, prompt_token_ids=prompt, sampling=sampling, eos_ids=eos, **kw)  # type: ignore[arg-type]


def take(stories: dict[str, Story], deltas: list[TokenDelta]) -> None:
    for delta in deltas:
        story = stories.setdefault(delta.request_id, Story())
        assert story.finish is None, "news after the end"
        story.tokens += delta.token_ids
        story.finish, story.error = delta.finish_reason, delta.error


def drain(engine: Engine, stories: dict[str, Story] | None = None, most: int = 5000) -> dict[str, Story]:
    stories = {} if stories is None else stories
    for _ in range(most):
        if engine.idle and not engine.intake.busy:
            return stories
        take(stories, engine.tick())
    raise AssertionError("the engine does not come to an end")


def model_answer(prompt: list[int], max_tokens: int, eos: tuple[int, ...] = ()) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens:
        tokens.append(rolling_token(tokens))
        if tokens[-1] in eos:
            break
    return tokens[len(prompt) :]


def random_requests(count: int, seed: int, eos: tuple[int, ...] = tuple(range(40))) -> list[Request]:
    rng = random.Random(seed)
    return [
        ask(
            f"r{i}", [rng.randrange(9) for _ in range(rng.randrange(1, 40))], rng.randrange(1, 30), eos, arrival=i * 1.0
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("core", [{}, {"num_blocks": 26}, {"priority": True}, {"full_sequence_must_fit": False}])
def test_overlapped_equals_synchronous_and_the_model(seed: int, core: dict[str, object]) -> None:
    answers = []
    for overlap in (False, True):
        engine = make(overlap, **core)
        for request in random_requests(40, seed):
            engine.submit(request)
        answers.append(drain(engine))
        assert engine.core.num_used_blocks == 0
    assert answers[0] == answers[1]
    for request in random_requests(40, seed):
        expected = model_answer(request.prompt_token_ids, request.sampling.max_tokens or 0, request.eos_ids)
        assert answers[0][request.request_id].tokens == expected


@pytest.mark.parametrize("overlap", [False, True])
def test_k16_an_abort_between_schedule_and_result_is_reported_as_an_abort(overlap: bool) -> None:
    """The step in flight would finish the request; the abort comes first and wins."""
    worker = FakeWorker()
    engine = make(overlap, worker)
    engine.submit(ask("a", [1, 2, 3], max_tokens=1))
    original = worker.collect

    def collect(handle: object, timeout_s: float) -> object:
        engine.abort("a")
        return original(handle, timeout_s)  # type: ignore[arg-type]

    worker.collect = collect  # type: ignore[method-assign, assignment]
    stories = drain(engine)
    assert (stories["a"].finish, stories["a"].tokens) == ("abort", [])
    assert engine.core.num_used_blocks == 0


@pytest.mark.parametrize("overlap", [False, True])
def test_k22_a_failed_step_leaves_no_hit_on_blocks_never_written(overlap: bool) -> None:
    prompt = list(range(20))
    worker = FakeWorker(fail_steps={0})
    engine = make(overlap, worker, token_budget=64)
    engine.submit(ask("a", prompt))
    stories = drain(engine)
    assert stories["a"].finish == "error"
    assert "scripted failure of step 0" in (stories["a"].error or "")
    computed_before = worker.num_tokens
    engine.submit(ask("b", prompt))
    drain(engine, stories)
    assert stories["b"].tokens == model_answer(prompt, 10)
    assert worker.num_tokens - computed_before >= len(prompt), "something was taken from the failed step's blocks"


def test_a_failed_step_takes_nobody_else_down() -> None:
    """With overlap the next step is already in flight; its other sequences are recomputed, not failed."""
    worker = FakeWorker(fail_steps={1})
    engine = make(True, worker, token_budget=6, max_seqs=4)
    stories: dict[str, Story] = {}
    engine.submit(ask("a", [1] * 6, max_tokens=4))
    take(stories, engine.tick())
    engine.submit(ask("b", [2] * 5, max_tokens=4))
    engine.submit(ask("c", [3] * 5, max_tokens=4))
    drain(engine, stories)
    failed = {name for name, story in stories.items() if story.finish == "error"}
    assert failed, "the scripted failure hit nobody"
    for name, prompt in (("a", [1] * 6), ("b", [2] * 5), ("c", [3] * 5)):
        if name not in failed:
            assert stories[name].tokens == model_answer(prompt, 4)
    assert engine.core.num_used_blocks == 0


def test_a_worker_that_raises_at_launch_fails_that_step_only() -> None:
    worker = FakeWorker()
    engine = make(True, worker)
    original, calls = worker.launch_forward, []

    def launch(plan: object, starts: object) -> object:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("no device")
        return original(plan, starts)  # type: ignore[arg-type]

    worker.launch_forward = launch  # type: ignore[method-assign, assignment]
    engine.submit(ask("a", [1, 2, 3]))
    stories = drain(engine)
    assert (stories["a"].finish, stories["a"].error) == ("error", "RuntimeError: no device")
    engine.submit(ask("b", [1, 2, 3]))
    assert drain(engine, stories)["b"].tokens == model_answer([1, 2, 3], 10)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_ten_thousand_random_operations_leave_no_block_behind(overlap: bool, seed: int) -> None:
    rng = random.Random(seed)
    worker = FakeWorker()
    engine = make(overlap, worker, num_blocks=30, max_seqs=6)
    stories: dict[str, Story] = {}
    asked: dict[str, Request] = {}
    live: list[str] = []
    for number in range(10_000):
        kind = rng.random()
        if kind < 0.25 and len(live) < 20:
            prompt = [rng.randrange(3) for _ in range(rng.randrange(1, 30))]
            request = ask(f"q{number}", prompt, rng.randrange(1, 20), (0, 1, 2), priority=rng.randrange(3))
            asked[request.request_id] = request
            engine.submit(request)
            live.append(request.request_id)
        elif kind < 0.33 and live:
            (engine.abort if rng.random() < 0.7 else engine.stop)(rng.choice(live))
        elif kind < 0.34:
            worker.fail_steps.add(number)
        elif kind < 0.345:
            engine.core.reset_prefix_cache(True)
        else:
            take(stories, engine.tick())
            live = [name for name in live if stories.get(name, Story()).finish is None]
    drain(engine, stories)
    assert engine.core.num_used_blocks == 0
    assert engine.core.num_unfinished == 0
    assert set(stories) == set(asked)
    ends = {story.finish for story in stories.values()}
    assert {"abort", "stop", "length"} <= ends
    for name, story in stories.items():
        request = asked[name]
        expected = model_answer(request.prompt_token_ids, request.sampling.max_tokens or 0, request.eos_ids)
        assert story.tokens == expected[: len(story.tokens)], "a history was disturbed"
        if story.finish == "length":
            assert story.tokens == expected


def test_a_full_queue_refuses_and_loses_nothing() -> None:
    engine = make(True, max_waiting=3)
    for i in range(3):
        engine.submit(ask(str(i), [1, 2]))
    assert not engine.accepts(1)
    with pytest.raises(QueueFull, match="try again later"):
        engine.submit(ask("3", [1, 2]))
    assert len(drain(engine)) == 3


def test_what_the_core_refuses_becomes_an_error_of_that_request_alone() -> None:
    engine = make(True)
    engine.submit(ask("long", [1] * 100))
    engine.submit(ask("fine", [1, 2, 3]))
    stories = drain(engine)
    assert stories["long"].finish == "error"
    assert "prompt" in (stories["long"].error or "")
    assert stories["fine"].finish == "length"


def test_closing_ends_everybody_and_refuses_newcomers() -> None:
    worker = FakeWorker()
    engine = make(True, worker)
    engine.submit(ask("a", [1, 2, 3]))
    engine.submit(ask("b", [1, 2, 3]))
    stories: dict[str, Story] = {}
    take(stories, engine.tick())
    take(stories, engine.close())
    assert {story.finish for story in stories.values()} == {"abort"}
    assert engine.core.num_used_blocks == 0
    assert worker.closed
    with pytest.raises(EngineDead):
        engine.submit(ask("c", [1]))


def test_stop_rules() -> None:
    """max_tokens, end-of-sequence, ignore_eos, stop ids and min_tokens, each at its own token."""
    worker = FakeWorker(next_token=lambda tokens: len(tokens))
    engine = make(True, worker)

    def sampled(name: str, **wishes: object) -> Request:
        sampling = SamplingParams(seed=0, **wishes)  # type: ignore[arg-type]
        return Request(request_id=name, prompt_token_ids=[0, 0, 0], sampling=sampling, eos_ids=(5,))

    engine.submit(sampled("length", max_tokens=2))
    engine.submit(sampled("eos", max_tokens=9))
    engine.submit(sampled("ignored", max_tokens=4, ignore_eos=True))
    engine.submit(sampled("stop id", max_tokens=9, ignore_eos=True, stop_token_ids=[7]))
    engine.submit(sampled("early", max_tokens=9, min_tokens=4, stop_token_ids=[4, 8]))
    stories = drain(engine)
    assert (stories["length"].tokens, stories["length"].finish) == ([3, 4], "length")
    assert (stories["eos"].tokens, stories["eos"].finish) == ([3, 4, 5], "stop")
    assert (stories["ignored"].tokens, stories["ignored"].finish) == ([3, 4, 5, 6], "length")
    assert (stories["stop id"].tokens, stories["stop id"].finish) == ([3, 4, 5, 6, 7], "stop")
    assert (stories["early"].tokens, stories["early"].finish) == ([3, 4, 5, 6, 7, 8], "stop")
