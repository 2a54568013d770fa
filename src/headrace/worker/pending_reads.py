"""Refuses to read a tensor's value inside a launch: on a device that is a wait, here it is a race with the thread that
writes it. Launches build tensors from host arrays and never read one back.

A TorchFunctionMode sees every call on this thread; it is entered only while the guard is on, for it slows each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.overrides import TorchFunctionMode

from headrace.obs.launch_guard import LaunchGuard

READS = frozenset(
    {"item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__", "__array__", "__dlpack__"}
    | {"nonzero", "equal", "is_nonzero", "masked_select", "unique"}
)
"""Calls that need the values, or whose result's shape does."""


class _NoReads(TorchFunctionMode):
    def __init__(self, guard: LaunchGuard) -> None:
        super().__init__()
        self._guard = guard

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS:
            self._guard.check(f"Tensor.{name}()")
        return func(*args, **(kwargs or {}))


def no_pending_reads(guard: LaunchGuard) -> AbstractContextManager[Any]:
    """While open, reading a tensor on this thread asks the guard. Nothing at all when the guard is off."""
    return _NoReads(guard) if guard.on else nullcontext()
