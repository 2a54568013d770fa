"""Choices of one V4.1 prompt in a voted engine. They share whole blocks only: in one that is not full the sibling
writes over the open half of a pair that a choice would still have to read."""

from __future__ import annotations

import random

import msgspec
import pytest
from harness import Outcome, make_engine, request, run
from v41_config import dummy_model

from headrace.contract.plan import Role
from headrace.contract.request import Request
from headrace.engine.phase_voted import PhaseVoted

BLOCK, CHOICES = 32, 3


def choices(length: int) -> list[Request]:
    """More of them than seats; long enough that whoever gets a seat late finds the first one far ahead."""
    rng = random.Random(length)
    prompt = [rng.randrange(290) for _ in range(length)]
    first, *others = [request(prompt, max_tokens=32, temperature=1.0, seed=k) for k in range(CHOICES)]
    return [first, *(msgspec.structs.replace(item, shares=first.request_id) for item in others)]


def outcomes(asked: list[Request], voted: bool, overlap: bool = True) -> list[Outcome]:
    pool = {"num_blocks": 300, "block_size": BLOCK, "max_model_len": 256, "graphs": "none", "max_seqs": 2}
    engine = make_engine(dummy_model(), overlap=overlap, role=int(Role.NORMAL if voted else Role.UNIFIED), **pool)
    if voted:
        engine._cadence = PhaseVoted(all_interval=3, any_interval=5)
    try:
        return run(engine, asked)
    finally:
        engine.close()


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("length", [34, 35, 63])
def test_choices_beyond_the_seats_are_those_of_each_alone(length: int, overlap: bool) -> None:
    alone = [outcomes([item], voted=False)[0].bits for item in choices(length)]
    found = outcomes(choices(length), voted=True, overlap=overlap)
    assert [o.bits for o in found] == alone
    assert [o.num_cached_tokens for o in found] == [0, BLOCK, BLOCK]
    assert dummy_model().kv_layout.rewrites
