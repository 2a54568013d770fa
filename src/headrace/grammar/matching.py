"""SequenceMatch: one sequence's matcher kept level with its tokens, forwards and backwards.

It is told the outputs so far, not what changed: after a preemption a fresh one replays them, and where a step was
taken back it rolls back. So there is no event that it could miss. Drafts it walks along and comes back at once: what
it has taken are never guesses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from headrace.contract.errors import HeadraceError

from .compiler import Grammar
from .mask import WordArray

BURST_S = 1.0  # of a processor, that one sequence's grammar may need before it is too slow
TOKEN_S = 0.02  # and as much again with each token

Outputs = Sequence[int] | NDArray[np.int32]


class GrammarError(HeadraceError):
    """A sequence left its grammar. Ends that sequence only."""


class GrammarTooSlow(GrammarError):
    """Following it takes too long: whoever asked for it can ask for a simpler one."""


class SequenceMatch:
    """``outputs`` are the ids generated so far, without the prompt. ``clock``: processor time of the calling thread; a
    grammar with too many ways to read the same text needs ever more of it, and a step waits for all its sequences."""

    def __init__(self, grammar: Grammar, clock: Callable[[], float] = time.thread_time) -> None:
        self._matcher = grammar.matcher()
        self._taken: list[int] = []
        self._clock = clock
        self._left_s = BURST_S

    def follow(self, outputs: Outputs) -> None:
        """Brings the matcher to the end of ``outputs``. Raises GrammarError at a token that does not fit,
        GrammarTooSlow where following has become too slow."""
        common = self._common(outputs)
        if common < len(self._taken):
            self._matcher.rollback(len(self._taken) - common)
            del self._taken[common:]
        for token in outputs[common:]:
            token = int(token)
            self._left_s = min(BURST_S, self._left_s + TOKEN_S)
            with self._charged():
                fits = not self._matcher.ended and self._matcher.accept(token)
            if not fits:
                raise GrammarError(f"token {token} (output {len(self._taken)}) does not fit the grammar")
            if self._left_s < 0:
                raise GrammarTooSlow("takes too long to follow: text can be read in too many ways; make it simpler")
            self._taken.append(token)

    @contextmanager
    def _charged(self) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        finally:
            self._left_s -= self._clock() - began

    def _common(self, outputs: Outputs) -> int:
        """How many tokens are known already. The usual case, one more than before, costs one comparison."""
        taken = self._taken
        if len(outputs) >= len(taken) and (not taken or int(outputs[len(taken) - 1]) == taken[-1]):
            return len(taken)
        common = 0
        while common < min(len(taken), len(outputs)) and int(outputs[common]) == taken[common]:
            common += 1
        return common

    def fits(self, ids: Outputs) -> int:
        """How many of ``ids`` may follow, in their order, up to the first that does not fit or the one that ends the
        grammar. The matcher stays where it is."""
        with self._excursion() as tread:
            return sum(1 for _ in takewhile(tread, ids))

    def fill_run(self, ids: Outputs, rows: Sequence[WordArray]) -> list[bool]:
        """``fill`` for the next token and, behind each of ``ids``, for the one that would follow; False too behind the
        first id that does not fit. ``rows``: one more than ids. The matcher stays where it is."""
        with self._excursion() as tread:
            filled = [self.fill(rows[0])]
            filled += [self.fill(words) for words, _ in zip(rows[1:], takewhile(tread, ids))]
        return filled + [False] * (len(rows) - len(filled))

    @contextmanager
    def _excursion(self) -> Iterator[Callable[[int], bool]]:
        """Gives a function that takes one more token, if it fits; all that was taken is taken back on leaving."""
        steps = 0

        def tread(token: int) -> bool:
            nonlocal steps
            with self._charged():
                fits = not self._matcher.ended and self._matcher.accept(int(token))
            steps += fits
            return fits

        try:
            yield tread
        finally:
            if steps:
                self._matcher.rollback(steps)

    def fill(self, words: WordArray) -> bool:
        """Sets the bits of what may come next; False, and nothing set, when the grammar has ended."""
        if self._matcher.ended:
            return False
        with self._charged():
            self._matcher.fill(words)
        return True
