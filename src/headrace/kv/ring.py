"""A ring of slots in shared memory: one process fills them, another copies values out. Nothing here opens memory.

Only the filling process hands out slots and changes who has them. Every slot has a *generation*, which grows before a
byte of it is written anew: whoever copies looks at it before and after, so a reader that comes late finds that its slot
was given to another and takes it for a miss, never for a value. A slot that is being filled is never taken back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.contract.ports import Bytes

PAGE = 4096
WORDS = 8  # int64 a slot, of which five are used
GENERATION, STATE, OWNER, BEAT, LENGTH = range(5)  # BEAT: microseconds of the clock; LENGTH: bytes of the value
FREE, FILLING, FILLED = range(3)
STALE_S = 10.0  # an owner that gave no sign for so long has forgotten its slot: twice a fetch's deadline
WAIT_S = 0.1  # between two looks for a free slot: a sweep may have made one

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class RingShape:
    """``num_slots`` values of at most ``slot_bytes`` each."""

    num_slots: int
    slot_bytes: int

    @property
    def stride(self) -> int:
        return -(-self.slot_bytes // PAGE) * PAGE

    @property
    def head_bytes(self) -> int:
        return -(-self.num_slots * WORDS * 8 // PAGE) * PAGE

    @property
    def total_bytes(self) -> int:
        return self.head_bytes + self.num_slots * self.stride

    def words(self, memory: memoryview) -> NDArray[np.int64]:
        """(slots, words), over the memory itself."""
        count = self.num_slots * WORDS
        return np.frombuffer(memory, np.int64, count).reshape(self.num_slots, WORDS)

    def payload(self, memory: memoryview, slot: int, length: int) -> Bytes:
        """The first ``length`` bytes of a slot, over the memory itself."""
        return np.frombuffer(memory, np.uint8, length, self.head_bytes + slot * self.stride)


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot as it was given: good while its generation stands."""

    number: int
    generation: int
    length: int


class RingWriter:
    """The side that fills; thread-safe. ``alive`` says whether a process still is; ``clock`` is the machine's."""

    def __init__(
        self, shape: RingShape, memory: memoryview, alive: Callable[[int], bool], clock: Clock = time.monotonic
    ) -> None:
        self.shape, self._memory, self._alive, self._clock = shape, memory, alive, clock
        self._words = shape.words(memory)
        self._changed = threading.Condition()

    def claim(self, owner: int, length: int, deadline: float) -> Slot | None:
        """A slot for a value of ``length`` bytes that process ``owner`` waits for; None: none was free in time."""
        if not 0 < length <= self.shape.slot_bytes:
            return None
        with self._changed:
            while (slot := self._first_free()) is None:
                left = deadline - self._clock()
                if left <= 0:
                    return None
                self._changed.wait(min(left, WAIT_S))
            row = self._words[slot]
            row[GENERATION] += 1  # first: from here on what was in it is nobody's
            row[STATE], row[OWNER], row[BEAT], row[LENGTH] = FILLING, owner, self._now(), length
            return Slot(slot, int(row[GENERATION]), length)

    def _first_free(self) -> int | None:
        free = np.flatnonzero(self._words[:, STATE] == FREE)
        return int(free[0]) if len(free) else None

    def _now(self) -> int:
        return int(self._clock() * 1e6)

    def fill(self, slot: Slot, value: Bytes) -> None:
        """Copies a value of the slot's length in; from now on it may be copied out."""
        self.shape.payload(self._memory, slot.number, slot.length)[:] = value
        row = self._words[slot.number]
        row[BEAT] = self._now()
        row[STATE] = FILLED

    def free(self, number: int, generation: int) -> bool:
        """Whoever had the slot needs it no more; false where it has another by now."""
        with self._changed:
            row = self._words[number]
            if row[GENERATION] != generation or row[STATE] == FREE:
                return False
            self._give_back(number)
            return True

    def sweep(self) -> int:
        """Takes back filled slots whose owner is dead or has given no sign for long. How many."""
        with self._changed:
            oldest = self._now() - int(STALE_S * 1e6)
            filled = np.flatnonzero(self._words[:, STATE] == FILLED)
            lost = [i for i in filled if self._words[i, BEAT] < oldest or not self._alive(int(self._words[i, OWNER]))]
            for number in lost:
                self._give_back(int(number))
            return len(lost)

    def _give_back(self, number: int) -> None:
        row = self._words[number]
        row[GENERATION] += 1  # a reader in the midst of it takes a miss
        row[STATE] = FREE
        self._changed.notify()


class RingReader:
    """The side that copies out; any thread. It never changes who has a slot."""

    def __init__(self, shape: RingShape, memory: memoryview, clock: Clock = time.monotonic) -> None:
        self.shape, self._memory, self._clock = shape, memory, clock
        self._words = shape.words(memory)

    def copy(self, slot: Slot) -> Bytes | None:
        """The value; None where the slot is another's now, or became so while it was copied."""
        if not self._stands(slot):
            return None
        value = self.shape.payload(self._memory, slot.number, slot.length).copy()
        return value if self._stands(slot) else None

    def _stands(self, slot: Slot) -> bool:
        row = self._words[slot.number]
        return bool(row[GENERATION] == slot.generation and row[STATE] == FILLED and row[LENGTH] == slot.length)

    def beat(self, slot: Slot) -> None:
        """A sign that the slot is still wanted."""
        if self._stands(slot):
            self._words[slot.number, BEAT] = int(self._clock() * 1e6)
