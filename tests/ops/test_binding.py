"""Threads bound to processors compute the same bits, and what the system refuses is survived."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from headrace.kernels import runtime
from headrace.kernels.cpu import runtime as cpu_runtime
from headrace.kernels.placement import Placement
from headrace.kernels.resolve import resolve_ops
from headrace.worker.device import DeviceThread


@pytest.fixture(autouse=True)
def unbound() -> Iterator[None]:
    threads, mask = cpu_runtime.num_threads(), os.sched_getaffinity(0)
    yield
    cpu_runtime.set_num_threads(threads)
    os.sched_setaffinity(0, mask)


def product() -> bytes:
    ops = resolve_ops("cpu")
    generator = np.random.default_rng(7)
    x, w = (torch.from_numpy(generator.standard_normal(shape, dtype=np.float32)) for shape in ((9, 320), (512, 320)))
    out: bytes = ops.linear(x, ops.pack_weight(w), None).numpy().tobytes()
    return out


def test_bound_threads_compute_the_same_bits() -> None:
    cpu_runtime.set_num_threads(3)
    free = product()
    processor = min(os.sched_getaffinity(0))
    assert cpu_runtime.bind([processor] * 3)
    assert product() == free
    assert cpu_runtime.bind([])
    assert product() == free


def test_one_processor_for_each_thread_or_none() -> None:
    cpu_runtime.set_num_threads(2)
    with pytest.raises(ValueError, match="bind_threads"):
        cpu_runtime.bind([0])


def test_what_the_system_refuses_is_said_and_survived(caplog: pytest.LogCaptureFixture) -> None:
    cpu_runtime.set_num_threads(2)
    assert runtime._settle(Placement((1 << 20, 1 << 20), ())) == Placement()
    assert "refused to bind" in caplog.text
    assert product()


def test_the_device_thread_binds_itself_and_no_other() -> None:
    processor = min(os.sched_getaffinity(0))
    device = DeviceThread(enter=runtime.caller_binding(Placement((processor,), ())))
    try:
        assert device.launch(lambda: os.sched_getaffinity(0)).result(10) == {processor}
    finally:
        device.close()
    assert os.sched_getaffinity(0) >= {processor}


def test_a_configured_engine_can_be_bound_to_its_cores() -> None:
    placement = runtime.configure("cpu", 1, pinning="cores")
    assert len(placement.processors) == 1
    assert runtime.configure("cpu", 1, pinning="none") == Placement()
