"""LaunchGuard: turns a hidden wait inside a launch into an error. A launch only queues; it must never wait.

The loop marks its launches; whatever can wait asks the guard first. Whether a wait is refused never depends on time: a
result that happens to be there already is refused like one that is not. Scopes belong to a thread; the device's own
thread is in none of them. The guard holds no locks and starts nothing.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext

from headrace.contract.errors import HiddenWait


class _Scope:
    """One entry of a thread's stack, for the length of a ``with``."""

    def __init__(self, stack: list[str | None], launch: str | None) -> None:
        self._stack = stack
        self._launch = launch

    def __enter__(self) -> None:
        self._stack.append(self._launch)

    def __exit__(self, *exc: object) -> None:
        self._stack.pop()


class LaunchGuard:
    """Off, nothing is refused and a launch costs a look-up: it is on the way of every step."""

    def __init__(self, on: bool = False) -> None:
        self.on = on
        self._scopes = threading.local()
        self._nothing: AbstractContextManager[None] = nullcontext()

    def launching(self, what: str, step: int = -1) -> AbstractContextManager[None]:
        """Until its end no wait is allowed on this thread; ``what`` (and the step) is named in the error."""
        if not self.on:
            return self._nothing
        return _Scope(self._stack(), what if step < 0 else f"{what} of step {step}")

    def allowed(self, reason: str) -> AbstractContextManager[None]:
        """A declared wait inside a launch. ``reason`` must not be empty: it is there for the reader.

        A launch inside it forbids again. Raises ValueError.
        """
        if not reason:
            raise ValueError("reason: a wait inside a launch needs one")
        return _Scope(self._stack(), None) if self.on else self._nothing

    @property
    def launch(self) -> str | None:
        """The launch this thread is in; None outside, and inside a declared wait."""
        stack = self._stack() if self.on else []
        return stack[-1] if stack else None

    def check(self, wait: str) -> None:
        """Called by what is about to wait, or to read what a device may still be writing. Raises HiddenWait."""
        if self.on and (launch := self.launch) is not None:
            raise HiddenWait(f"{wait} inside {launch}: a launch must not wait (declare it, or move it to collect)")

    def _stack(self) -> list[str | None]:
        stack: list[str | None] | None = getattr(self._scopes, "stack", None)
        if stack is None:
            stack = self._scopes.stack = []
        return stack
