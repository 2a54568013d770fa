"""Suffix lookup: the longest end of a sequence that occurred before, in itself or in finished sequences, goes on as it
did then. A suffix automaton finds it in constant time per token, whatever its length.

The automaton is Blumer et al.'s ("The smallest automaton recognizing the subwords of a text", 1985), built online. The
memory of finished sequences is bounded and off unless asked for: with it, how fast one request is answered tells
something of what others were about (what is answered never does).
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.contract.plan import IntArray

from .drafter import EMPTY, Draft, Wanted, matched

BREAK = -1  # stands between two sequences; no token equals it


class Automaton:
    """All substrings of a growing text. State 0 is the empty string; ``ends[s]`` is where state s last ended, as far
    as that is known (at worst where it ended first)."""

    def __init__(self) -> None:
        self.text: list[int] = []
        self.next: list[dict[int, int]] = [{}]
        self.link: list[int] = [-1]
        self.length: list[int] = [0]
        self.ends: list[int] = [0]
        self.last = 0

    def _state(self, length: int, link: int, moves: dict[int, int], end: int) -> int:
        self.next.append(moves)
        self.link.append(link)
        self.length.append(length)
        self.ends.append(end)
        return len(self.next) - 1

    def extend(self, token: int) -> None:
        self.text.append(token)
        end = len(self.text)
        state = self._state(self.length[self.last] + 1, 0, {}, end)
        at = self.last
        while at >= 0 and token not in self.next[at]:
            self.next[at][token] = state
            at = self.link[at]
        if at >= 0:
            target = self.next[at][token]
            self.link[state] = target if self.length[target] == self.length[at] + 1 else self._split(at, token, target)
        self.last = state

    def _split(self, at: int, token: int, target: int) -> int:
        """A state of its own for the shorter strings that used to share ``target``."""
        clone = self._state(self.length[at] + 1, self.link[target], dict(self.next[target]), self.ends[target])
        while at >= 0 and self.next[at].get(token) == target:
            self.next[at][token] = clone
            at = self.link[at]
        self.link[target] = clone
        return clone

    def repeated(self) -> tuple[int, int]:
        """(length, end) of the longest end of the text that occurred before; the occurrence is marked as seen again,
        so that the next look finds the later one."""
        state = self.link[self.last]
        if state <= 0:
            return 0, 0
        found = self.length[state], self.ends[state]
        self.ends[state] = len(self.text)
        return found

    def step(self, state: int, length: int, token: int) -> tuple[int, int]:
        """Follows a foreign text: the longest end of it (state, length) that occurs here, one token further."""
        while state > 0 and token not in self.next[state]:
            state = self.link[state]
            length = self.length[state]
        if token in self.next[state]:
            return self.next[state][token], length + 1
        return 0, 0

    def after(self, end: int, most: int) -> list[int]:
        """What followed position ``end``, up to the end of that sequence."""
        ids = self.text[end : end + most]
        return ids[: ids.index(BREAK)] if BREAK in ids else ids


class SuffixDrafter:
    """A ``Drafter``. ``low``: the shortest match that counts. ``memory``: tokens of finished sequences to remember."""

    eager = True

    def __init__(self, low: int, memory: int = 0) -> None:
        self._low = low
        self._memory = memory
        self._own: dict[int, Automaton] = {}
        self._shared = Automaton()
        self._places: dict[int, tuple[int, int]] = {}  # of each sequence in the shared automaton

    def begin(self, seq_id: int, tokens: IntArray) -> None:
        self._own[seq_id] = Automaton()
        self._places[seq_id] = 0, 0
        self.extend(seq_id, tokens)

    def extend(self, seq_id: int, tokens: IntArray) -> None:
        own, place = self._own[seq_id], self._places[seq_id]
        for token in tokens.tolist():
            own.extend(token)
            if self._memory:
                place = self._shared.step(*place, token)
        self._places[seq_id] = place

    def end(self, seq_id: int) -> None:
        own = self._own.pop(seq_id, None)
        self._places.pop(seq_id, None)
        if own is None or not self._memory:
            return
        if len(self._shared.text) + len(own.text) > self._memory:  # begins afresh rather than grow or be sifted
            self._shared = Automaton()
            self._places = dict.fromkeys(self._places, (0, 0))
        for token in [*own.text[-self._memory + 1 :], BREAK]:
            self._shared.extend(token)

    def propose(self, wanted: Sequence[Wanted]) -> list[Draft]:
        return [self._propose(item) for item in wanted]

    def _propose(self, item: Wanted) -> Draft:
        own = self._own[item.seq_id]
        length, end = own.repeated()
        state, shared_length = self._places[item.seq_id]
        if shared_length > length and shared_length >= self._low:
            ids = self._shared.after(self._shared.ends[state], item.most)
            if ids:
                return matched(ids, shared_length)
        if length < self._low:
            return EMPTY
        period = len(own.text) - end
        return matched([own.text[end + i % period] for i in range(item.most)], length)
