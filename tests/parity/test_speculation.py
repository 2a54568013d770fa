"""Speculation changes how fast tokens come, never which: ids and the bits of logprobs equal those of plain decoding.

The prophet's drafts are often right, sometimes wrong and sometimes short, so every kind of rollback occurs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drafters import Prophet
from harness import Outcome, make_engine, request, run
from test_parity import bits, prompts, requests, wishes
from test_phases import normal_engine

from headrace.api.drafters import full_group
from headrace.contract.request import Request
from headrace.engine.engine import Engine
from headrace.lab.replay import replay
from headrace.models.context import Model
from headrace.obs.recorder import Recorder
from headrace.obs.recording import read_recording
from headrace.speculation.ngram import NgramDrafter
from headrace.worker.kv_tensors import allocate_kv
from headrace.worker.model_drafter import ModelDrafter

PRESSED = {"num_blocks": 0, "full_sequence_must_fit": False, "max_model_len": 50, "token_budget": 16}


def plain(model: Model, items: list[Request], **limits: Any) -> list[Outcome]:
    engine = make_engine(model, overlap=False, prefix_caching=False, graphs="none", **limits)
    outcomes = run(engine, items)
    engine.close()
    return outcomes


def prophet(items: list[Request], outcomes: list[Outcome], wrong: float = 0.2) -> Prophet:
    return Prophet([[*r.prompt_token_ids, *o.token_ids, 7, 8, 9] for r, o in zip(items, outcomes)], wrong)


def speculating(model: Model, discipline: str, **settings: Any) -> Engine:
    """An engine of either discipline."""
    if discipline == "unified":
        return make_engine(model, **settings)
    engine: Engine = normal_engine(model, {"all_interval": 3, "any_interval": 5}, **settings)
    return engine


def speculated(engine: Engine) -> tuple[int, int]:
    """(verified, accepted) so far."""
    return engine.stats.verified_drafts, engine.stats.accepted_drafts


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("wrong", [0.0, 0.3, 1.0])
def test_speculation_equals_plain_decoding(model: Model, overlap: bool, wrong: float) -> None:
    items = requests()
    expected = plain(model, items)
    engine = make_engine(model, overlap=overlap, drafter=prophet(items, expected, wrong))
    assert bits(run(engine, requests())) == bits(expected)
    verified, accepted = speculated(engine)
    assert verified > 0
    assert accepted > 0 or wrong == 1.0
    assert bits(run(engine, requests())) == bits(expected), "a warm cache changed something"
    engine.close()


@pytest.mark.parametrize("limits", [{"token_budget": 3}, {"token_budget": 7}, {"max_seqs": 2}, {"graphs": "none"}])
@pytest.mark.parametrize("overlap", [False, True])
def test_cuts_and_batches_do_not_matter(model: Model, limits: dict[str, Any], overlap: bool) -> None:
    items = requests()
    expected = plain(model, items)
    engine = make_engine(model, overlap=overlap, drafter=prophet(items, expected), **limits)
    assert bits(run(engine, requests())) == bits(expected)
    engine.close()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("max_drafts", [1, 3, 5])
def test_k7_pressure_in_every_step_with_drafts(model: Model, max_drafts: int, overlap: bool) -> None:
    """A pool that holds about two sequences; drafts want blocks too. Text equals the synchronous run without drafts."""

    def growing() -> list[Request]:
        return [request(p, max_tokens=16, **wishes(i)) for i, p in enumerate(prompts(8, high=34))]

    items = growing()
    expected = plain(model, items)
    groups = len(model.kv_layout.groups)
    engine = make_engine(
        model,
        overlap=overlap,
        drafter=prophet(items, expected),
        max_drafts=max_drafts,
        num_blocks=12 * groups + 2,
        max_model_len=50,
        full_sequence_must_fit=False,
        token_budget=16,
    )
    assert bits(run(engine, growing())) == bits(expected)
    assert engine.core.num_preemptions > 0, "the pool was not small enough to show anything"
    assert speculated(engine)[1] > 0
    engine.close()


@pytest.mark.parametrize("overlap", [False, True])
def test_k7_holds_where_prompts_and_decoding_are_planned_apart(model: Model, overlap: bool) -> None:
    items = requests()
    expected, groups, preempted = plain(model, items), len(model.kv_layout.groups), 0
    for intervals, limits in (
        ({"all_interval": 3, "any_interval": 5}, {"token_budget": 16}),
        ({"all_interval": 1}, {"num_blocks": 14 * groups, "full_sequence_must_fit": False, "max_model_len": 50}),
    ):
        engine = normal_engine(model, intervals, overlap=overlap, drafter=prophet(items, expected), **limits)
        assert bits(run(engine, requests())) == bits(expected)
        assert speculated(engine)[1] > 0
        preempted += engine.core.num_preemptions
        engine.close()
    assert preempted > 0


def test_k9_a_sequence_skipped_for_want_of_budget_meets_no_unknown_id(tiny: Callable[[str], Model]) -> None:
    """With a budget of 4 rows and up to 6 wanted by each, somebody is left out of every step; the worker refuses a
    batch with a negative id, and the prophet one in a history."""
    items = [request([i + 1] * 5, max_tokens=12) for i in range(4)]
    expected = plain(tiny("llama"), items)
    for overlap in (False, True):
        engine = make_engine(
            tiny("llama"), overlap=overlap, drafter=prophet(items, expected), token_budget=4, max_seqs=4
        )
        again = [request([i + 1] * 5, max_tokens=12) for i in range(4)]
        assert bits(run(engine, again)) == bits(expected)
        engine.close()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("discipline", ["unified", "phases"])
def test_k13_prompts_that_end_around_a_block_boundary(model: Model, discipline: str, overlap: bool) -> None:
    """Block 8, prompts of block - 1 .. block + drafts; the pool is full of NaN and what is unwritten stays so."""
    rng = random.Random(13)
    items = [request([rng.randrange(61) for _ in range(n)], max_tokens=9) for n in range(7, 15)]
    expected = plain(model, items, block_size=8)
    for item, outcome in zip(items, expected):
        drafter = prophet([item], [outcome], wrong=0.1)
        engine = speculating(model, discipline, overlap=overlap, drafter=drafter, max_drafts=6, block_size=8)
        again = request(item.prompt_token_ids, max_tokens=9)
        assert bits(run(engine, [again])) == bits([outcome])
        engine.close()


def copy_task(model: Model) -> list[int]:
    """A prompt on which greedy decoding falls into a loop, as models this small do."""
    prompt = [5, 6, 7, 5, 6, 7, 5, 6]
    [outcome] = plain(model, [request(prompt, max_tokens=60)])
    return [*prompt, *outcome.token_ids]


def test_k14_acceptance_of_ngram_drafts_is_the_same_with_and_without_overlap(model: Model) -> None:
    prompt = copy_task(model)
    seen = []
    for overlap in (False, True):
        engine = make_engine(model, overlap=overlap, drafter=NgramDrafter(1, 3))
        [outcome] = run(engine, [request(prompt, max_tokens=40)])
        seen.append((outcome.bits, speculated(engine)))
        engine.close()
    (outcome, (verified, accepted)), (overlapped, (verified_too, accepted_too)) = seen
    assert outcome == overlapped
    assert 0 < accepted == accepted_too
    # Near the length limit fewer rows can be promised while a step in flight may still use them up.
    assert abs(verified - verified_too) <= 2 * 5


def test_k29_what_a_slot_held_before_does_not_matter(model: Model) -> None:
    """One slot; a long request, then a short one, against the short one alone."""
    long, short = copy_task(model), [9, 9, 8, 9, 9, 8, 9]
    counts = []
    for before in ([], [long]):
        engine = make_engine(model, drafter=NgramDrafter(1, 3), max_seqs=1, prefix_caching=False)
        for prompt in before:
            run(engine, [request(prompt, max_tokens=20)])
        first = speculated(engine)
        outcome = run(engine, [request(short, max_tokens=20)])
        counts.append((bits(outcome), speculated(engine)[0] - first[0], speculated(engine)[1] - first[1]))
        engine.close()
    assert counts[0] == counts[1]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("discipline", ["unified", "phases"])
def test_k31_min_tokens_inside_the_draft_window(model: Model, discipline: str, overlap: bool) -> None:
    """Each sequence would end at once but for ``min_tokens``; drafts reach across that point."""
    rng = random.Random(31)
    prompts = [[rng.randrange(61) for _ in range(6)] for _ in range(6)]
    ends = tuple({o.token_ids[2] for o in plain(model, [request(p) for p in prompts])})

    def items() -> list[Request]:
        return [request(p, eos_ids=ends, min_tokens=i, max_tokens=12) for i, p in enumerate(prompts)]

    expected = plain(model, items())
    assert {o.finish_reason for o in expected} >= {"stop"}
    engine = speculating(model, discipline, overlap=overlap, drafter=prophet(items(), expected, wrong=0.05))
    assert bits(run(engine, items())) == bits(expected)
    engine.close()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("discipline", ["unified", "phases"])
def test_k32_runs_that_cross_the_end_are_cut_at_the_right_token(model: Model, discipline: str, overlap: bool) -> None:
    """The prophet knows nothing of ends: its drafts run over end-of-sequence, stop ids and ``max_tokens``. Ids,
    logprobs and counts are those of plain decoding; the metrics count what was emitted."""
    prompt = [3, 1, 4, 1, 5]
    [free] = plain(model, [request(prompt, max_tokens=24)])
    texts = [[*prompt, *free.token_ids]]
    endings: list[dict[str, Any]] = [{"max_tokens": n} for n in (1, 2, 3, 5, 8)]
    endings += [{"max_tokens": 24, "eos_ids": (free.token_ids[n],)} for n in (0, 1, 4)]
    endings += [{"max_tokens": 24, "stop_token_ids": [free.token_ids[n]]} for n in (2, 3)]
    for ending in endings:
        [expected] = plain(model, [request(prompt, **ending)])
        engine = speculating(model, discipline, overlap=overlap, drafter=Prophet(texts, wrong=0.0))
        [outcome] = run(engine, [request(prompt, **ending)])
        assert outcome.bits == expected.bits, ending
        assert len(outcome.logprobs) == 3 * len(outcome.token_ids)
        assert engine.stats.accepted_drafts < len(outcome.token_ids) or len(outcome.token_ids) == 1
        engine.close()


def model_drafter(engine: Engine, draft: Model | None = None) -> ModelDrafter:
    """The engine's own first layers, or ``draft`` with KV full of NaN beside the engine's."""
    runner = engine.worker._runner  # type: ignore[attr-defined]
    if draft is None:
        return ModelDrafter(runner.model.first_layers(2), runner.ops, runner.kv, 4, shares_kv=True)
    kv = allocate_kv(draft.kv_layout, len(runner.kv[0].k), 4, poison=True)
    return ModelDrafter(draft, runner.ops, kv, 4, group=full_group(runner.model.kv_layout))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("limits", [{}, {"token_budget": 9}, PRESSED])
@pytest.mark.parametrize("own", [True, False])
def test_model_drafts_change_nothing(
    model: Model, tiny: Callable[[str], Model], own: bool, limits: dict[str, Any], overlap: bool
) -> None:
    """Drafts by the model's first layers, and by another model; also under preemption and with a warm cache."""
    items, groups = requests(), len(model.kv_layout.groups)
    if "num_blocks" in limits:
        limits = limits | {"num_blocks": 14 * groups + 1}
    expected = plain(model, items)
    engine = make_engine(model, overlap=overlap, drafter=Prophet([]), **limits)
    engine.worker._speculator._drafter = model_drafter(engine, None if own else tiny("llama"))  # type: ignore[attr-defined]
    assert bits(run(engine, requests())) == bits(expected)
    assert bits(run(engine, requests())) == bits(expected)
    assert speculated(engine)[0] > 0
    engine.close()


@pytest.mark.parametrize("overlap", [False, True])
def test_a_model_that_drafts_for_itself_is_always_right(tiny: Callable[[str], Model], overlap: bool) -> None:
    """The same model as its own draft model: every greedy draft is accepted, after prefix hits and preemptions too."""
    model = tiny("llama")
    groups = len(model.kv_layout.groups)
    rng = random.Random(6)
    items = [[rng.randrange(61) for _ in range(rng.randrange(3, 30))] for _ in range(6)]
    engine = make_engine(model, overlap=overlap, drafter=Prophet([]), **PRESSED | {"num_blocks": 14 * groups + 1})
    engine.worker._speculator._drafter = model_drafter(engine, model)  # type: ignore[attr-defined]
    for _ in range(2):
        run(engine, [request(prompt, max_tokens=12) for prompt in items])
        run(engine, [request(items[-1], max_tokens=12)])
    assert engine.core.num_preemptions > 0
    assert engine.core.prefix_hits > 0
    verified, accepted = speculated(engine)
    assert accepted > 60
    assert verified - accepted <= 2 * 6 * 6, "only what reached past an end may be missing"
    engine.close()


def test_prompt_logprobs_of_a_neighbour_stay_with_their_rows(tiny: Callable[[str], Model]) -> None:
    """Rows reserved for drafts that were not proposed are left out, so those of later slices move."""
    model = tiny("llama")

    def items() -> list[Request]:
        scored = [request([4 + i] * (20 + i), prompt_logprobs=1, max_tokens=2) for i in range(3)]
        return [request([1, 2, 3], max_tokens=16), *scored]

    expected = plain(model, items())
    engine = make_engine(model, drafter=prophet(items(), expected, wrong=0.5), token_budget=13)
    assert bits(run(engine, items())) == bits(expected)
    engine.close()


def test_a_recording_of_speculation_can_be_replayed(tiny: Callable[[str], Model], tmp_path: Path) -> None:
    model = tiny("llama")
    items = requests()
    expected = plain(model, items)
    settings = {"num_blocks": 40, "block_size": 4, "token_budget": 16, "max_model_len": 50}
    recorder = Recorder.open(tmp_path / "run.jsonl", settings)
    engine = make_engine(model, drafter=prophet(items, expected), observer=recorder, **settings)
    assert bits(run(engine, requests())) == bits(expected)
    engine.close()
    report = replay(read_recording(tmp_path / "run.jsonl"))
    assert report.difference is None
    assert report.num_steps > 0


def test_seeded_sampling_is_repeated_to_the_token_whatever_is_drafted(tiny: Callable[[str], Model]) -> None:
    """A hundred rounds of one seeded request, among changing neighbours and with changing drafts: one output."""
    model, rng = tiny("llama+blocks"), random.Random(4)
    [expected] = plain(model, [request([1, 2, 3], temperature=1.2, seed=9, max_tokens=12)])
    text = [1, 2, 3, *expected.token_ids]
    drafter = Prophet([text], wrong=0.3)
    engine = make_engine(model, drafter=drafter, token_budget=32)
    for round_number in range(100):
        drafter.wrong = rng.random()
        others = [request([rng.randrange(61) for _ in range(rng.randrange(1, 9))]) for _ in range(round_number % 5)]
        mine = request([1, 2, 3], temperature=1.2, seed=9, max_tokens=12)
        assert run(engine, [mine, *others])[0].bits == expected.bits
    engine.close()
