"""Backends under test, one per instruction set, and comparisons."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from headrace.kernels.cpu import runtime
from headrace.kernels.ops import Ops
from headrace.kernels.resolve import resolve_ops


@pytest.fixture(params=runtime.available_isas())
def cpu(request: pytest.FixtureRequest) -> Iterator[Ops]:
    """The strict CPU backend under one instruction set; settings are restored afterwards."""
    before, threads = runtime.isa(), runtime.num_threads()
    runtime.set_isa(request.param)
    yield resolve_ops("cpu", strict=True)
    runtime.set_isa(before)
    runtime.set_num_threads(threads)


@pytest.fixture(scope="session")
def reference() -> Ops:
    return resolve_ops("reference", strict=True)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal as bit patterns, so that NaN equals NaN and -0 differs from 0."""
    if a.dtype == torch.float32:
        a, b = a.contiguous().view(torch.int32), b.contiguous().view(torch.int32)
    return torch.equal(a, b)
