"""Bubbles and the overlap ratio, from scripted times: what counts as idle, whose fault it is, and the sums."""

from __future__ import annotations

from headrace.contract.result import StepTimes
from headrace.contract.stats import OverlapStats
from headrace.engine.overlap import OverlapMeter
from headrace.obs.metrics import BUBBLE_SECONDS, SECONDS, Metrics


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def turn(meter: OverlapMeter, clock: Clock, begins: int, ends: int, waits: tuple[int, int], resting: bool) -> None:
    clock.now = begins
    meter.turn_begins(resting)
    clock.now = waits[0]
    with meter.waiting():
        clock.now = waits[1]
    clock.now = ends
    meter.turn_ends(worked=True)


def test_a_synchronous_step_has_all_its_planning_as_a_bubble() -> None:
    clock = Clock()
    meter = OverlapMeter(clock)
    turn(meter, clock, 1000, 1170, (1050, 1150), resting=True)
    meter.finished(StepTimes(1050, 1130, 1130, 1150))
    turn(meter, clock, 1170, 1340, (1220, 1320), resting=False)
    meter.finished(StepTimes(1220, 1300, 1300, 1320))
    stats = meter.snapshot()
    assert stats.bubble_ns == 50 + 70  # since the loop woke; since the step before ended
    assert stats.last_bubble_ns == 70
    assert stats.busy_ns == 200
    assert stats.host_ns == 70 + 70
    assert stats.overlap_ratio == 1 - 120 / 140


def test_work_behind_the_device_is_no_bubble_but_a_late_sample_is() -> None:
    clock = Clock()
    meter = OverlapMeter(clock)
    turn(meter, clock, 0, 100, (60, 60), resting=True)
    meter.finished(StepTimes(10, 400, 400, 420))
    turn(meter, clock, 420, 500, (450, 450), resting=False)
    meter.finished(StepTimes(420, 430, 455, 460))
    assert meter.snapshot().bubble_ns == 10 + 25


def test_idleness_without_work_and_turns_without_steps_do_not_count() -> None:
    clock = Clock()
    meter = OverlapMeter(clock)
    clock.now = 10
    meter.turn_begins(resting=True)
    clock.now = 900
    meter.turn_ends(worked=False)
    meter.finished(None)
    bubbles, busy = [0] * (len(BUBBLE_SECONDS) + 1), [0] * (len(SECONDS) + 1)
    assert meter.snapshot() == OverlapStats(bubble_counts=bubbles, busy_counts=busy)
    assert meter.snapshot().overlap_ratio == 0.0
    meter.finished(StepTimes(5, 6, 6, 7))
    clock.now = 10**9
    meter.turn_begins(resting=True)
    meter.finished(StepTimes(10**9 + 3, 10**9 + 4, 10**9 + 4, 10**9 + 5))
    assert meter.snapshot().last_bubble_ns == 3


def test_steps_are_counted_by_bubble_and_exported() -> None:
    meter = OverlapMeter(Clock())
    at = 1
    for bubble_s in (0.0, 2e-5, 0.003, 7.0):
        at += round(bubble_s * 1e9)
        meter.finished(StepTimes(at, at + 1, at + 1, at + 2))
        at += 2
    stats, metrics = meter.snapshot(), Metrics()
    metrics.put_histogram("step_bubble_seconds", stats.bubble_counts, stats.bubble_ns / 1e9)
    histogram = metrics.histograms["step_bubble_seconds"]
    assert (sum(histogram.counts), histogram.counts[-1]) == (4, 1)
    assert round(histogram.sum, 5) == 7.00302
    metrics.put_histogram("step_bubble_seconds", [], 0.0)  # an engine that has not reported yet
    assert sum(histogram.counts) == 4
