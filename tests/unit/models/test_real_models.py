"""Facts about the real default models, float32. Needs their files (pulled on first use)."""

from __future__ import annotations

import pytest
from paged_runner import PagedRunner, greedy

from headrace.kernels.ops import Ops
from headrace.kernels.resolve import resolve_ops
from headrace.models.context import Model
from headrace.models.registry import load_model
from headrace.models.sources import resolve_model
from headrace.models.weights import open_checkpoint

pytestmark = pytest.mark.model
CAPITAL_OF_FRANCE = [504, 3575, 282, 4649, 314]  # "The capital of France is"


@pytest.fixture(scope="module")
def ops() -> Ops:
    return resolve_ops("cpu", strict=True)


def load(name: str, ops: Ops) -> Model:
    return load_model(open_checkpoint(resolve_model(name).path), ops, exact=True)


def test_smollm2_continues_with_paris(ops: Ops) -> None:
    model = load("smollm2-135m-instruct", ops)
    assert greedy(PagedRunner(model, ops, 1, 32), CAPITAL_OF_FRANCE, 5) == [7042, 30, 198, 198, 504]


def test_gemma3_names_the_largest_city(ops: Ops) -> None:
    """<bos> "The capital of France is" goes on "the capital of the country of France. ..."."""
    model = load("gemma3-270m", ops)
    assert [g.window for g in model.kv_layout.groups] == [0, 512, 512, 512, 512, 512]
    ids = greedy(PagedRunner(model, ops, 1, 32), [2, 818, 5279, 529, 7001, 563], 8)
    assert ids == [506, 5279, 529, 506, 2891, 529, 7001, 236761]
