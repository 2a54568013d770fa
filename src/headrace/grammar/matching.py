"""SequenceMatch: one sequence's matcher kept level with its tokens, forwards and backwards.

It is told the outputs so far, not what changed: after a preemption a fresh one replays them, and where a step was
taken back it rolls back. So there is no event that it could miss.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.contract.errors import HeadraceError

from .compiler import Grammar
from .mask import WordArray

Outputs = Sequence[int] | NDArray[np.int32]


class GrammarError(HeadraceError):
    """A sequence left its grammar. Ends that sequence only."""


class SequenceMatch:
    """``outputs`` are the ids generated so far, without the prompt."""

    def __init__(self, grammar: Grammar) -> None:
        self._matcher = grammar.matcher()
        self._taken: list[int] = []

    def follow(self, outputs: Outputs) -> None:
        """Brings the matcher to the end of ``outputs``. Raises GrammarError at a token that does not fit."""
        common = self._common(outputs)
        if common < len(self._taken):
            self._matcher.rollback(len(self._taken) - common)
            del self._taken[common:]
        for token in outputs[common:]:
            token = int(token)
            if not self._matcher.accept(token):
                raise GrammarError(f"token {token} (output {len(self._taken)}) does not fit the grammar")
            self._taken.append(token)

    def _common(self, outputs: Outputs) -> int:
        """How many tokens are known already. The usual case, one more than before, costs one comparison."""
        taken = self._taken
        if len(outputs) >= len(taken) and (not taken or int(outputs[len(taken) - 1]) == taken[-1]):
            return len(taken)
        common = 0
        while common < min(len(taken), len(outputs)) and int(outputs[common]) == taken[common]:
            common += 1
        return common

    def fill(self, words: WordArray) -> bool:
        """Sets the bits of what may come next; False, and nothing set, when the grammar has ended."""
        if self._matcher.ended:
            return False
        self._matcher.fill(words)
        return True
