"""However long a caller is willing to wait for a step, the wait itself is one the system's clocks can express."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.contract.errors import WorkerError
from headrace.worker.worker import Worker


def collect(sample: Future[Any], timeout_s: float) -> Any:
    """``Worker.collect`` of a step of which only the outcome of sampling exists."""
    worker = Worker.__new__(Worker)
    worker._result = lambda _handle, tokens, _logprobs: tokens  # type: ignore[assignment, method-assign]
    handle: Any = SimpleNamespace(sample=sample, plan=SimpleNamespace(step=3))
    return worker.collect(handle, timeout_s)


@pytest.mark.parametrize("timeout_s", [1e10, 1e300, float("inf")])
def test_a_wait_without_end(timeout_s: float) -> None:
    sample: Future[Any] = Future()
    later = threading.Timer(0.05, lambda: sample.set_result(("tokens", None)))
    later.start()
    assert collect(sample, timeout_s) == "tokens"
    later.join()


def test_a_wait_that_is_over_names_the_step() -> None:
    with pytest.raises(WorkerError, match=r"step 3 did not finish within 0\.01 s"):
        collect(Future(), 0.01)
