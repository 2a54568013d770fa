"""Drafts for V4.1 through the true engine: by its own heads, and by a prophet whose drafts are often right. Which
tokens come, and the bits of their logprobs, are those of plain decoding."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from drafters import Prophet
from harness import Outcome, make_engine, request, run
from v41_config import dummy_model

from headrace.contract.request import Request
from headrace.models.deepseek_v41.forward import V41Model
from headrace.worker.head_drafter import HeadDrafter
from headrace.worker.runner import Runner

LENGTHS = (1, 23, 70)
POOL: dict[str, Any] = {"num_blocks": 700, "block_size": 8, "max_model_len": 512, "graphs": "none"}
TIGHT: dict[str, Any] = {"num_blocks": 130, "max_model_len": 100, "full_sequence_must_fit": False, "token_budget": 24}


@pytest.fixture(scope="module")
def drafting() -> V41Model:
    of = copy.copy(dummy_model())
    of.keep_draft_records()
    return of


def requests(lengths: tuple[int, ...] = LENGTHS, **sampling: Any) -> list[Request]:
    rng = random.Random(43)
    return [request([rng.randrange(290) for _ in range(n)], **{"max_tokens": 14, **sampling}) for n in lengths]


def outcomes(of: V41Model, wanted: list[Request], **settings: Any) -> list[Outcome]:
    engine = make_engine(of, **(POOL | settings))
    try:
        return run(engine, wanted)
    finally:
        engine.close()


def heads(runner: Runner) -> HeadDrafter:
    assert isinstance(runner.model, V41Model)
    return HeadDrafter(runner.model.draft_heads(), runner.ops, runner.kv)


@pytest.fixture(scope="module")
def expected() -> list[object]:
    """Each alone, of the model without draft records, nothing drafted."""
    settings = {"overlap": False, "prefix_caching": False}
    return [outcomes(dummy_model(), [item], **settings)[0].bits for item in requests()]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("budget", [13, 512])
def test_drafts_by_heads_change_nothing(drafting: V41Model, expected: list[object], overlap: bool, budget: int) -> None:
    engine = make_engine(drafting, drafter=heads, overlap=overlap, **(POOL | {"token_budget": budget}))
    assert [o.bits for o in run(engine, requests())] == expected
    assert engine.stats.verified_drafts > 0, "a block read what was not written"
    again = run(engine, requests())
    engine.close()
    assert [o.bits for o in again] == expected
    assert again[-1].num_cached_tokens > 0


@pytest.mark.parametrize("overlap", [False, True])
def test_right_and_wrong_drafts_change_nothing(drafting: V41Model, expected: list[object], overlap: bool) -> None:
    """Accepted runs of every length, then rejections: draft records are kept all the while."""
    items = requests()
    plain = outcomes(drafting, requests(), overlap=False)
    prophet = Prophet([[*r.prompt_token_ids, *o.token_ids, 7, 8, 9] for r, o in zip(items, plain)], 0.3)
    engine = make_engine(drafting, drafter=prophet, overlap=overlap, **POOL)
    assert [o.bits for o in run(engine, requests())] == expected
    assert engine.stats.accepted_drafts > 0
    engine.close()


def test_heads_draft_for_preempted_sequences(drafting: V41Model) -> None:
    lengths = (61, 66, 52)
    alone = [outcomes(dummy_model(), [item], overlap=False)[0].bits for item in requests(lengths)]
    engine = make_engine(drafting, drafter=heads, **(POOL | TIGHT))
    assert [o.bits for o in run(engine, requests(lengths))] == alone
    assert engine.core.num_preemptions > 0, "the pool was not small enough to show anything"
    assert engine.stats.verified_drafts > 0
    engine.close()


@pytest.mark.parametrize("overlap", [False, True])
def test_heads_draft_to_the_end_of_the_context(overlap: bool) -> None:
    """The longest sequence is as long as the model has positions; its last blocks reach beyond them."""
    short = copy.copy(dummy_model(max_positions=64))
    short.keep_draft_records()
    lengths, settings = (49, 58, 63), {"max_model_len": 64, "overlap": overlap}
    alone = [outcomes(dummy_model(), [item], **settings)[0].bits for item in requests(lengths, max_tokens=64)]
    engine = make_engine(short, drafter=heads, **(POOL | settings))
    assert [o.bits for o in run(engine, requests(lengths, max_tokens=64))] == alone
    assert engine.stats.verified_drafts > 0
    engine.close()
