"""Experts spread over ranks: the same bits as on one, wherever experts lie and while they move."""

from __future__ import annotations

import multiprocessing
import random
from pathlib import Path
from typing import Any

import pytest
from expert_ranks import Threads, dummy_share, process_rank
from harness import Outcome, make_engine, request, run
from v41_config import dummy_model
from v41_data import PROMPTS, VARIANTS, folder, goldens, model

from headrace.contract.errors import GroupBroken
from headrace.contract.request import Request
from headrace.models.deepseek_v41.expert_ranks import ParallelExperts
from headrace.models.deepseek_v41.forward import V41Model
from headrace.parallel.eplb.balancer import ExpertShare
from headrace.parallel.eplb.stats import RebalanceConfig
from headrace.speculation.ngram import NgramDrafter

LENGTHS = (23, 70, 3, 41)
OFTEN = RebalanceConfig(spares_per_rank=1, window=3, interval=5)
START_S = 300.0  # processes import torch, on a machine that may be busy


def requests() -> list[Request]:
    rng = random.Random(7)
    settings = {"max_tokens": 30, "prompt_logprobs": 1}
    return [request([rng.randrange(290) for _ in range(n)], **settings) for n in LENGTHS]


def bits(found: list[Outcome]) -> list[object]:
    return [outcome.bits for outcome in found]


@pytest.fixture(scope="module")
def expected() -> list[object]:
    engine = make_engine(dummy_model(), num_blocks=600, block_size=8, max_model_len=512, graphs="none")
    found = bits(run(engine, requests()))
    engine.close()
    return found


def dealt(asked: list[Request], size: int) -> list[list[Request]]:
    """Round the ranks; with more ranks than requests some have none and only keep company."""
    return [asked[rank::size] for rank in range(size)]


@pytest.mark.parametrize(("size", "spares", "overlap"), [(2, 1, True), (2, 0, False), (4, 1, True), (6, 0, True)])
def test_any_number_of_ranks_equals_one(expected: list[object], size: int, spares: int, overlap: bool) -> None:
    group = Threads([dummy_share(size, rank, spares) for rank in range(size)], overlap=overlap, token_budget=33)
    found = group.run(dealt(requests(), size))
    assert group.failures == [None] * size
    group.close()
    for rank in range(size):
        assert bits(found[rank]) == expected[rank::size]
    rows = sum(of.expert_load().rows for of in group.models)
    assert rows % (8 * 2) == 0  # each token asks two experts in each of eight layers
    assert rows > 0


def placements(of: V41Model) -> list[list[int]]:
    assert isinstance(of.experts, ParallelExperts)
    return [slots.placement.physical_to_logical.tolist() for slots in of.experts._layers]


@pytest.mark.parametrize("size", [2, 4])
def test_experts_that_move_under_way_change_no_bit(expected: list[object], size: int) -> None:
    group = Threads([dummy_share(size, rank) for rank in range(size)], OFTEN, token_budget=33)
    found = group.run(dealt(requests(), size))
    assert group.failures == [None] * size
    group.close()
    for rank in range(size):
        assert bits(found[rank]) == expected[rank::size]
    assert sum(of.expert_load().moves for of in group.models) > 0, "nothing moved, so nothing was shown"
    first, *others = map(placements, group.models)
    assert all(other == first for other in others)
    began = ExpertShare(0, size, 1).placement(8).physical_to_logical.tolist()
    assert all(slots != began for slots in first), "rounds come faster than layers: each must have had its turn"


def test_guessed_tokens_go_with_shared_experts(expected: list[object]) -> None:
    """Ranks verify different numbers of drafts in one step, or none."""
    models = [dummy_share(2, rank) for rank in range(2)]
    group = Threads(models, OFTEN, token_budget=40, drafter=lambda _: NgramDrafter(1, 3), max_drafts=3)
    found = group.run(dealt(requests(), 2))
    assert group.failures == [None] * 2
    assert all(engine.stats.verified_drafts for engine in group.engines)
    group.close()
    assert [bits(one) for one in found] == [expected[rank::2] for rank in range(2)]


def test_a_rank_that_fails_in_a_step_ends_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait for its rows: they are told at once, and no request is left hanging."""
    models = [dummy_share(2, rank) for rank in range(2)]
    group = Threads(models, token_budget=33)

    def broken(*_: object) -> Any:
        raise RuntimeError("out of order")

    monkeypatch.setattr(models[1], "embed", broken)
    group.run(dealt(requests(), 2))
    assert all(isinstance(failure, GroupBroken) for failure in group.failures)
    assert "rank 1 of 2 failed in a step that others share: out of order" in str(group.failures[1])
    for engine in group.engines:
        last = engine.close("error", "the group is gone")
        assert {delta.error for delta in last if delta.finish_reason} == {"the group is gone"}


PLACES = {
    "launch": lambda worker: (worker._packer, "pack"),
    "clones": lambda worker: (worker._runner, "clone_blocks"),
    "pictures": lambda worker: (worker._pictures, "placed"),
    "drafts": lambda worker: (worker._speculator, "revise"),
}


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("place", PLACES)
def test_what_fails_beside_the_layers_ends_the_group_too(
    monkeypatch: pytest.MonkeyPatch, place: str, overlap: bool
) -> None:
    """A rank whose step fails before the others meet it there would leave them waiting, or run a step behind."""
    models = [dummy_share(2, rank) for rank in range(2)]
    settings: dict[str, Any] = {"token_budget": 40, "drafter": lambda _: NgramDrafter(1, 3), "max_drafts": 3}
    group = Threads(models, overlap=overlap, **settings)
    owner, name = PLACES[place](group.engines[1].worker)
    calls, real = iter(range(1000)), getattr(owner, name)

    def broken(*given: object) -> Any:
        if next(calls) == 2:
            raise RuntimeError("out of order")
        return real(*given)

    monkeypatch.setattr(owner, name, broken)
    group.run(dealt(requests(), 2))
    assert all(isinstance(failure, GroupBroken) for failure in group.failures)
    assert "a step that other ranks share: out of order" in str(group.failures[1])
    for engine in group.engines:
        last = engine.close("error", "the group is gone")
        assert {delta.error for delta in last if delta.finish_reason} == {"the group is gone"}


@pytest.mark.parametrize("size", [2, 4])
def test_processes_on_the_golden_checkpoint_equal_one_process(size: int, tmp_path: Path) -> None:
    """Real processes over gloo, each with its experts only, which move every six steps."""
    g = goldens(VARIANTS[0])
    settings: dict[str, Any] = {"max_tokens": 8, "prompt_logprobs": 1}
    asked = [request(g.ids(prompt), **settings) for prompt in PROMPTS]
    engine = make_engine(model(VARIANTS[0]), num_blocks=600, block_size=32, max_model_len=512, graphs="none")
    alone = bits(run(engine, asked))
    engine.close()
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe(duplex=False) for _ in range(size)]
    shared = (size, tmp_path, folder(VARIANTS[0]), dealt(asked, size))
    ranks = [context.Process(target=process_rank, args=(n, *shared, pipes[n][1]), daemon=True) for n in range(size)]
    try:
        for rank in ranks:
            rank.start()
        for number, (reader, _) in enumerate(pipes):
            assert reader.poll(START_S), "a rank does not report"
            found, load = reader.recv()
            assert bits(found) == alone[number::size]
            assert load.rows > 0
    finally:
        for rank in ranks:
            rank.kill()
            rank.join(10)
