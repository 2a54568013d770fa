"""Outputs of a step belong to the loop until the next turn. Whoever keeps them longer copies them.

In tests the arrays are overwritten at that moment, so that a view somebody kept shows. Never touches deltas: they are
copies already.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from headrace.contract.batch import POISON
from headrace.contract.result import LogprobArrays, StepResult


class OwnedOutputs:
    """Holds the results of one turn. With ``poison`` off it holds nothing."""

    def __init__(self, poison: bool) -> None:
        self._poison = poison
        self._held: list[StepResult] = []

    def take(self, result: StepResult) -> None:
        """The loop is done with the result; others may look at it until ``release``."""
        if self._poison:
            self._held.append(result)

    def release(self) -> None:
        """The next turn begins."""
        for result in self._held:
            for array in _arrays(result):
                if array.flags.writeable:
                    array.fill(POISON if array.dtype.kind == "i" else np.nan)
        self._held.clear()


def _arrays(result: StepResult) -> Iterator[NDArray[np.generic]]:
    yield from (result.num_valid, result.offsets, result.tokens)
    scores = [prompt.values for prompt in result.prompt_logprobs.values()]
    for table in (result.logprobs, *scores):
        if table is not None:
            yield from _columns(table)


def _columns(table: LogprobArrays) -> Iterator[NDArray[np.generic]]:
    yield from (table.chosen, table.rank, table.top_ids, table.top_values)
