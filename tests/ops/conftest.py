"""Backends under test, one per instruction set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
