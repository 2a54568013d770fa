"""A silence is the other side's only while this one was there to hear it."""

from __future__ import annotations

from headrace.engine.silence import Silence


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def looks(silence: Silence, clock: Clock, *gaps: float) -> float:
    for gap in gaps:
        clock.now += gap
        seconds = silence.look()
    return seconds


def test_silence_grows_while_somebody_listens_and_ends_with_a_word() -> None:
    silence = Silence(clock := Clock())
    assert looks(silence, clock, *[0.25] * 40) == 10
    clock.now += 0.25
    silence.heard()
    assert looks(silence, clock, 0.5, 0.5) == 1


def test_a_listener_that_stood_still_heard_nothing_and_blames_nobody() -> None:
    silence = Silence(clock := Clock())
    assert looks(silence, clock, 0.5, 3600.0, 0.5) == 2
    assert looks(silence, clock, *[0.5] * 20) == 12  # and from there on counts as before
