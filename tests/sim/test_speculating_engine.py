"""The true engine with drafts, over a worker without a model: pressure, aborts, failures, counts."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from test_engine import ask, drain, make, model_answer, take

from headrace._core import Scheduler
from headrace.engine.drafting import Drafting
from headrace.engine.engine import Engine
from headrace.worker.fake import FakeWorker, rolling_token


def guess(tokens: Sequence[int], most: int) -> list[int]:
    """Right six times out of seven, as the tokens will have it."""
    row = list(tokens)
    for _ in range(most):
        right = rolling_token(row)
        row.append(right if right % 7 else (right + 1) % 1000)
    return row[len(tokens) :]


def speculating(overlap: bool, worker: FakeWorker | None = None, most: int = 4, **core: object) -> Engine:
    settings: dict[str, object] = {"num_blocks": 40, "block_size": 4, "token_budget": 16, "max_seqs": 8}
    settings |= {"max_model_len": 100} | core
    worker = worker or FakeWorker(guess=guess)
    return Engine(Scheduler(**settings), worker, overlap=overlap, drafting=Drafting(most))  # type: ignore[arg-type]


@pytest.mark.parametrize("overlap", [False, True])
def test_answers_are_those_of_plain_decoding_in_fewer_steps(overlap: bool) -> None:
    prompts = {f"r{i}": [i + 1] * (3 + i) for i in range(5)}
    steps = []
    for engine in (make(overlap), speculating(overlap, token_budget=64)):
        for name, prompt in prompts.items():
            engine.submit(ask(name, prompt, max_tokens=30))
        stories = drain(engine)
        assert {name: story.tokens for name, story in stories.items()} == {
            name: model_answer(prompt, 30) for name, prompt in prompts.items()
        }
        steps.append(engine.stats.steps)
    assert steps[1] < 0.6 * steps[0]


def test_counts_equal_what_was_emitted() -> None:
    """Synchronous, so that no step is computed in vain: each step of a sequence emits one token of its own and the
    drafts that were accepted, up to the end."""
    engine = speculating(False)
    engine.submit(ask("a", [1, 2, 3], max_tokens=29))
    rows = 0
    while engine.intake.busy or not engine.idle:
        before = engine.stats
        tokens = sum(len(delta.token_ids) for delta in engine.tick())
        accepted = engine.stats.accepted_drafts - before.accepted_drafts
        assert accepted in (tokens, tokens - 1)  # the last run may end on a draft
        rows += tokens
    assert rows == 29
    assert 0 < engine.stats.accepted_drafts < engine.stats.verified_drafts


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("num_blocks", [12, 18])
def test_random_histories_under_pressure(num_blocks: int, overlap: bool) -> None:
    """Aborts, failing steps and too few blocks: whoever ends normally has plain decoding's answer."""
    rng = random.Random(num_blocks)
    worker = FakeWorker(guess=guess, fail_steps=set(rng.sample(range(2000), 40)))
    engine = speculating(overlap, worker, num_blocks=num_blocks, max_model_len=40, full_sequence_must_fit=False)
    stories: dict[str, object] = {}
    asked = {}
    for number in range(200):
        name, prompt, most = (
            f"r{number}",
            [rng.randrange(50) for _ in range(rng.randrange(1, 12))],
            rng.randrange(1, 20),
        )
        asked[name] = prompt, most
        engine.submit(ask(name, prompt, max_tokens=most))
        for _ in range(rng.randrange(6)):
            take(stories, engine.tick())  # type: ignore[arg-type]
        if rng.random() < 0.1:
            engine.abort(f"r{rng.randrange(number + 1)}")
    drain(engine, stories)  # type: ignore[arg-type]
    normal = [name for name, story in stories.items() if story.finish == "length"]  # type: ignore[attr-defined]
    assert len(normal) > 80
    for name in normal:
        assert stories[name].tokens == model_answer(*asked[name]), name  # type: ignore[attr-defined]
    assert engine.core.num_preemptions > 0
    assert engine.core.num_used_blocks == 0
