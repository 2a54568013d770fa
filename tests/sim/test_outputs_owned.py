"""Outputs belong to the loop until the next turn: a caller that kept a view fails, one that copied does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_engine import ask, drain, make, model_answer

from headrace.contract.batch import POISON
from headrace.contract.result import LogprobArrays, PromptLogprobs, StepResult
from headrace.engine.owned import OwnedOutputs


class Keeper:
    """A StepObserver that keeps what it was shown, as views and as copies."""

    def __init__(self) -> None:
        self.views: list[np.ndarray] = []
        self.copies: list[list[int]] = []

    def committed(self, step: int, num_valid: Any, offsets: Any, tokens: Any) -> None:
        assert (step >= 0, len(num_valid)) == (True, len(offsets) - 1)
        self.views.append(tokens)
        self.copies.append(tokens.tolist())

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.mark.parametrize("overlap", [False, True])
def test_a_kept_view_is_poison_and_a_copy_is_not(overlap: bool) -> None:
    keeper, expected = Keeper(), model_answer([1, 2, 3], 6)
    engine = make(overlap, observer=keeper)
    engine.submit(ask("r", [1, 2, 3], 6))
    story = drain(engine)["r"]
    engine.tick()
    assert story.tokens == expected == [token for copy in keeper.copies for token in copy]
    assert {int(token) for view in keeper.views for token in view} == {POISON}


def test_outputs_are_whole_until_the_next_turn() -> None:
    keeper = Keeper()
    engine = make(False, observer=keeper)
    engine.submit(ask("r", [1, 2, 3], 2))
    engine.tick()
    assert keeper.views[0].tolist() == keeper.copies[0]
    engine.tick()
    assert keeper.views[0].tolist() == [POISON]


def table(rows: int, top: int) -> LogprobArrays:
    values = np.ones((rows, top), np.float32)
    return LogprobArrays(values[:, 0].copy(), np.ones(rows, np.int32), values.astype(np.int32), values)


def whole_result() -> StepResult:
    ones = np.ones(2, np.int32)
    return StepResult(0, ones, ones.copy(), ones.copy(), table(2, 3), {7: PromptLogprobs(0, ones.copy(), table(1, 1))})


@pytest.mark.parametrize("poison", [True, False])
def test_every_array_of_a_result_is_reached_or_none(poison: bool) -> None:
    result, owner = whole_result(), OwnedOutputs(poison)
    owner.take(result)
    owner.release()
    owner.release()
    tables = (result.logprobs, result.prompt_logprobs[7].values)
    arrays = [result.num_valid, result.offsets, result.tokens]
    arrays += [getattr(table, name) for table in tables for name in ("chosen", "rank", "top_ids", "top_values")]
    for array in arrays:
        gone = np.isnan(array).all() if array.dtype.kind == "f" else (array == POISON).all()
        assert bool(gone) == poison
