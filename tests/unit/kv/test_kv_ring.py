"""The ring by itself, in plain memory with a clock that a test moves: what is copied out is right or missed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from kv_values import key_of, payload_of

from headrace.kv.ring import STALE_S, RingReader, RingShape, RingWriter, Slot

ME, OTHER = 100, 200
SHAPE = RingShape(3, 5000)


class Sides:
    """Both sides of one ring, a clock and the processes that live."""

    def __init__(self, shape: RingShape = SHAPE) -> None:
        self.now, self.living = 50.0, {ME, OTHER}
        memory = memoryview(bytearray(shape.total_bytes))
        self.writer = RingWriter(shape, memory, self.living.__contains__, lambda: self.now)
        self.reader = RingReader(shape, memory, lambda: self.now)

    def put(self, number: int, owner: int = ME, length: int = 5000) -> Slot | None:
        """A value in a slot; None where there is none free."""
        slot = self.writer.claim(owner, length, self.now)
        if slot is not None:
            self.writer.fill(slot, payload_of(key_of(number), length))
        return slot

    def right(self, slot: Slot, number: int) -> bool:
        """Whether it can be copied; fails when it can, and wrong."""
        value = self.reader.copy(slot)
        assert value is None or np.array_equal(value, payload_of(key_of(number), slot.length)), "a wrong byte"
        return value is not None


@pytest.fixture
def sides() -> Sides:
    return Sides()


def filled(slot: Slot | None) -> Slot:
    assert slot is not None
    return slot


def test_a_value_is_copied_until_its_slot_is_given_back(sides: Sides) -> None:
    slot = filled(sides.put(1, length=4321))
    assert sides.right(slot, 1)
    assert sides.right(slot, 1)
    assert sides.writer.free(slot.number, slot.generation)
    assert not sides.right(slot, 1)
    assert not sides.writer.free(slot.number, slot.generation)


def test_slots_end_and_values_have_a_size(sides: Sides) -> None:
    slots = [filled(sides.put(i)) for i in range(3)]
    assert sides.put(3) is None
    assert all(sides.right(slot, i) for i, slot in enumerate(slots))
    sides.writer.free(slots[1].number, slots[1].generation)
    assert filled(sides.put(3)).number == slots[1].number
    assert sides.writer.claim(ME, 5001, sides.now) is None
    assert sides.writer.claim(ME, 0, sides.now) is None


def test_a_slot_that_is_being_filled_is_nobody_s_yet_and_never_swept(sides: Sides) -> None:
    slot = filled(sides.writer.claim(ME, 5000, sides.now))
    sides.living.clear()
    sides.now += 100 * STALE_S
    assert sides.reader.copy(slot) is None
    assert sides.writer.sweep() == 0
    sides.writer.fill(slot, payload_of(key_of(1)))
    assert sides.right(slot, 1)


def test_slots_of_the_dead_are_taken_back_at_once(sides: Sides) -> None:
    mine, theirs = filled(sides.put(1, ME)), filled(sides.put(2, OTHER))
    sides.living.remove(OTHER)
    assert sides.writer.sweep() == 1
    assert sides.right(mine, 1)
    assert not sides.right(theirs, 2)


def test_slots_without_a_sign_are_taken_back(sides: Sides) -> None:
    kept, forgotten = filled(sides.put(1)), filled(sides.put(2))
    for _ in range(3):
        sides.now += 0.9 * STALE_S
        sides.reader.beat(kept)
        sides.writer.sweep()
    assert sides.right(kept, 1)
    assert not sides.right(forgotten, 2)


def test_a_late_reader_misses_what_was_given_to_another(sides: Sides) -> None:
    late = filled(sides.put(1))
    sides.now += 2 * STALE_S
    assert sides.writer.sweep() == 1
    successor = filled(sides.put(2))
    assert successor.number == late.number
    assert not sides.right(late, 1)
    assert not sides.writer.free(late.number, late.generation)
    sides.reader.beat(late)
    assert sides.right(successor, 2)
    sides.now += 2 * STALE_S  # what was late gave no sign for its successor
    sides.reader.beat(late)
    assert sides.writer.sweep() == 1


class Meddling(RingShape):
    """Something happens just before bytes are copied, after the first look at the generation."""

    happens: Any = None

    def payload(self, memory: memoryview, slot: int, length: int) -> Any:
        Meddling.happens()
        return super().payload(memory, slot, length)


def test_a_slot_given_away_while_it_is_copied_is_a_miss(sides: Sides) -> None:
    slot = filled(sides.put(1))

    def given_away() -> None:
        sides.writer.free(slot.number, slot.generation)
        assert filled(sides.put(2)).number == slot.number

    Meddling.happens = staticmethod(given_away)
    sides.reader.shape = Meddling(3, 5000)
    assert sides.reader.copy(slot) is None


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_calls(seed: int) -> None:
    sides, draw = Sides(), random.Random(seed)
    given: list[tuple[Slot, int]] = []
    copied = 0
    for number in range(400):
        what = draw.randrange(5)
        if what <= 1 and (slot := sides.put(number, draw.choice([ME, OTHER, 300]))):
            given.append((slot, number))
        elif what == 2 and given:
            slot, _ = draw.choice(given)
            sides.writer.free(slot.number, slot.generation)
        elif what == 3:
            sides.now += draw.random() * STALE_S
            sides.writer.sweep()
        copied += sum(sides.right(slot, of) for slot, of in given[-6:])
    assert copied
    assert len({(slot.number, slot.generation) for slot, _ in given}) == len(given)
