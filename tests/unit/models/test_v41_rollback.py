"""Drafts that are rejected leave nothing behind: a step that takes tokens back, then goes on, equals one that never
drafted, to the bit. Windows, compressed rows, open pairs and n-grams are all written again in time."""

from __future__ import annotations

import random

import pytest
import torch
from paged_runner import PagedRunner
from torch import Tensor
from v41_config import dummy_model

from headrace.contract.errors import WorkerError
from headrace.models.deepseek_v41.forward import V41Model
from headrace.models.deepseek_v41.records import MOST_DRAFTS

PROMPT, STEPS = 41, 9


@pytest.fixture(autouse=True)
def _no_gradients() -> object:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def small() -> V41Model:
    return dummy_model()


def ids(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(300) for _ in range(count)]


def started(of: V41Model, length: int, block_size: int) -> PagedRunner:
    runner = PagedRunner(of, of.arithmetic.ops, 1, length + 40, block_size=block_size)
    runner.step({0: ids(length, seed=1)})
    return runner


def plain(of: V41Model, length: int, block_size: int) -> list[Tensor]:
    runner = started(of, length, block_size)
    return [runner.logits({0: [token]})[0][0] for token in ids(STEPS, seed=2)]


@pytest.mark.parametrize(("length", "block_size"), [(PROMPT, 2), (PROMPT + 1, 32)])
@pytest.mark.parametrize("drafts", [1, 2, 5, 10, MOST_DRAFTS])
def test_rejected_drafts_leave_no_trace(small: V41Model, length: int, drafts: int, block_size: int) -> None:
    runner, found = started(small, length, block_size), []
    for number, token in enumerate(ids(STEPS, seed=2)):
        found.append(runner.logits({0: [token, *ids(drafts, seed=100 + number)]})[0][0])
        runner.lengths[0] -= drafts
    assert all(map(torch.equal, found, plain(small, length, block_size)))


def test_accepted_drafts_are_rows_like_any_other(small: V41Model) -> None:
    """Three of five accepted, again and again."""
    expected, tokens = plain(small, PROMPT, 8), ids(STEPS, seed=2)
    runner, found = started(small, PROMPT, 8), []
    for at in range(0, STEPS, 3):
        found += list(runner.logits({0: [*tokens[at : at + 3], *ids(2, seed=at)]})[0][:3])
        runner.lengths[0] -= 2
    assert all(map(torch.equal, found, expected))


def test_more_than_can_be_taken_back_is_an_error_and_not_another_answer(small: V41Model) -> None:
    runner = started(small, PROMPT + 1, 32)
    drafts = MOST_DRAFTS + 2
    runner.logits({0: [7, *ids(drafts, seed=3)]})
    runner.lengths[0] -= drafts - 1
    runner.lengths[0] -= (runner.lengths[0] + 1) % 2  # the next token completes a pair
    with pytest.raises(WorkerError, match="taken back"):
        runner.logits({0: [8]})
