"""A hidden wait inside a launch is an error: nesting, declared waits, leaks on exit, threads, tensors, the switch."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace.api.launch import open_guard
from headrace.config import resolve
from headrace.contract.errors import ConfigError, HiddenWait, WorkerError
from headrace.obs.launch_guard import LaunchGuard
from headrace.worker.device import DeviceThread
from headrace.worker.pending_reads import no_pending_reads


@pytest.fixture
def guard() -> LaunchGuard:
    return LaunchGuard(on=True)


def test_a_wait_is_refused_inside_and_allowed_outside(guard: LaunchGuard) -> None:
    guard.check("a wait")
    with guard.launching("step 3"), pytest.raises(HiddenWait, match="a wait inside step 3"):
        guard.check("a wait")
    guard.check("a wait")


def test_nesting_names_the_inner_launch_and_leaves_the_outer_in_force(guard: LaunchGuard) -> None:
    with guard.launching("outer"):
        with guard.launching("inner"), pytest.raises(HiddenWait, match="inner"):
            guard.check("a wait")
        with pytest.raises(HiddenWait, match="outer"):
            guard.check("a wait")
    assert guard.launch is None


def test_a_declared_wait_is_allowed_and_a_launch_inside_it_forbids_again(guard: LaunchGuard) -> None:
    with guard.launching("outer"):
        with guard.allowed("the drafter needs the token"):
            guard.check("a wait")
            with guard.launching("inner"), pytest.raises(HiddenWait, match="inner"):
                guard.check("a wait")
            guard.check("a wait")
        with pytest.raises(HiddenWait):
            guard.check("a wait")


def test_a_declared_wait_needs_a_reason(guard: LaunchGuard) -> None:
    with guard.launching("outer"), pytest.raises(ValueError, match="reason"), guard.allowed(""):
        pass


@pytest.mark.parametrize("inner", ["launching", "allowed"])
def test_an_exception_leaves_no_scope_behind(guard: LaunchGuard, inner: str) -> None:
    with guard.launching("outer"):
        with pytest.raises(KeyError), getattr(guard, inner)("x"):
            raise KeyError
        assert guard.launch == "outer"
    assert guard.launch is None
    guard.check("a wait")


def test_scopes_belong_to_their_thread(guard: LaunchGuard) -> None:
    seen: list[str | None] = []

    def other() -> None:
        seen.append(guard.launch)
        guard.check("a wait")
        with guard.launching("theirs"):
            seen.append(guard.launch)

    with guard.launching("ours"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(10)
        assert guard.launch == "ours"
    assert seen == [None, "theirs"]


def test_two_guards_do_not_know_each_other(guard: LaunchGuard) -> None:
    with LaunchGuard(on=True).launching("another engine"):
        guard.check("a wait")


def test_waiting_for_the_device(guard: LaunchGuard) -> None:
    """Refused whether the result is there or not; the device's own thread may wait for itself."""
    device = DeviceThread(guard=guard)
    first = device.launch(lambda: 7)
    assert first.result(10) == 7
    with guard.launching("step 1"):
        for wait in (first.result, first.exception):
            with pytest.raises(HiddenWait, match="of a launch inside step 1"):
                wait()
        with pytest.raises(HiddenWait, match="close"):
            device.close()
        second = device.launch(lambda: first.result(0))
        with guard.allowed("a test"):
            assert second.result(10) == 7
    device.close()


def test_a_launch_that_raises_still_tells_why_and_when(guard: LaunchGuard) -> None:
    device = DeviceThread(guard=guard)

    def broken() -> None:
        raise WorkerError("no")

    ticket = device.launch(broken)
    with pytest.raises(WorkerError, match="no"):
        ticket.result(10)
    assert 0 < ticket.started_ns <= ticket.ended_ns
    device.close()


READS: list[Callable[[Tensor], object]] = [
    lambda t: t[0].item(),
    lambda t: t.tolist(),
    lambda t: t.numpy(),
    lambda t: np.asarray(t),
    lambda t: bool(t[0]),
    lambda t: int(t[0]),
    lambda t: float(t[0]),
    lambda t: [0, 1, 2][t[0]],
    lambda t: t.cpu(),
    lambda t: torch.nonzero(t),
    lambda t: torch.equal(t, t),
]


@pytest.mark.parametrize("read", READS)
def test_reading_a_tensor(guard: LaunchGuard, read: Callable[[Tensor], object]) -> None:
    tensor = torch.tensor([1, 2])
    with no_pending_reads(guard):
        read(tensor)
        with guard.launching("step 2"):
            torch.zeros(3, dtype=torch.int32)[1:] = 4  # building is fine
            with pytest.raises(HiddenWait, match="inside step 2"):
                read(tensor)
            with guard.allowed("a test"):
                read(tensor)
    with guard.launching("no mode is entered here"):
        read(tensor)


def test_off_nothing_is_refused() -> None:
    guard = LaunchGuard()
    with guard.launching("step 1"), no_pending_reads(guard):
        guard.check("a wait")
        assert torch.tensor([3]).tolist() == [3]
        assert guard.launch is None


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_guard(resolve({})).on, "on for every test"
    assert not open_guard(resolve({"overlap_checks": False})).on
    monkeypatch.delenv("HEADRACE_OVERLAP_CHECKS")
    assert not open_guard(resolve({})).on
    assert open_guard(resolve({"overlap_checks": True})).on
    monkeypatch.setenv("HEADRACE_OVERLAP_CHECKS", "yes")
    with pytest.raises(ConfigError, match="HEADRACE_OVERLAP_CHECKS"):
        open_guard(resolve({}))
