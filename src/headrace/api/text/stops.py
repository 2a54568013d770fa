"""Stop strings in a stream of text pieces.

Invariants: text that may still turn out to be part of a stop string is held back; what was emitted, joined,
does not depend on how the text was cut into pieces. The match that ends first in the text wins, of several
that end together the longest. Knows nothing of token ids: the caller says which token brought each piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.contract.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class StopMatch:
    """``stop`` was completed by text of token number ``token`` (the caller's numbering)."""

    stop: str
    token: int


class StopStrings:
    """Feeds each character to one automaton per stop string, so the cost does not grow with their length."""

    def __init__(self, stops: Sequence[str], *, include_stop_str_in_output: bool = False) -> None:
        if any(not stop for stop in stops):
            raise InvalidRequest("stop", "a stop string must not be empty")
        # Longest first: of stops that end at the same character, the one that began first is reported.
        self._automata = [_Automaton(stop) for stop in sorted(stops, key=len, reverse=True)]
        self._include = include_stop_str_in_output
        self._held = ""
        self.match: StopMatch | None = None

    def push(self, piece: str, token: int) -> str:
        """Text that is safe to emit after ``piece``. Once ``match`` is set, all further text is dropped."""
        if self.match is not None:
            return ""
        text = self._held + piece
        for end, char in enumerate(piece, start=len(self._held) + 1):
            if stop := self._completed(char):
                self.match, self._held = StopMatch(stop, token), ""
                return text[: end if self._include else end - len(stop)]
        keep = max((automaton.length for automaton in self._automata), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The held-back text, where the text ends without a match. A stop string does not reach across."""
        held, self._held = self._held, ""
        for automaton in self._automata:
            automaton.length = 0
        return held

    def _completed(self, char: str) -> str | None:
        found = None
        for automaton in self._automata:  # no early exit: every automaton must see every character
            if automaton.step(char) and found is None:
                found = automaton.stop
        return found


class _Automaton:
    """Knuth-Morris-Pratt: ``length`` is how much of the stop string the text's end spells."""

    def __init__(self, stop: str) -> None:
        self.stop, self.length = stop, 0
        self._borders = _borders(stop)

    def step(self, char: str) -> bool:
        """Takes one character; True when the stop string is complete."""
        while self.length and self.stop[self.length] != char:
            self.length = self._borders[self.length]
        self.length += self.stop[self.length] == char
        return self.length == len(self.stop)


def _borders(word: str) -> list[int]:
    """``borders[n]``: length of the longest proper prefix of ``word[:n]`` that is also its suffix."""
    borders = [0, 0]
    for end in range(1, len(word)):
        length = borders[end]
        while length and word[length] != word[end]:
            length = borders[length]
        borders.append(length + (word[length] == word[end]))
    return borders
