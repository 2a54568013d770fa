"""LaunchGuard: turns a hidden wait inside a launch into an error. A launch only queues; it must never wait.

The loop marks its launches; whatever can wait asks the guard first. Whether a wait is refused never depends on time: a
result that happens to be there already is refused like one that is not. Scopes belong to a thread; the device's own
thread is in none of them. The guard holds no locks and starts nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.contract.errors import HiddenWait


class LaunchGuard:
    """Off, every call costs an attribute look-up and nothing is refused."""

    def __init__(self, on: bool = False) -> None:
        self.on = on
        self._scopes = threading.local()

    @contextmanager
    def launching(self, what: str) -> Iterator[None]:
        """Until its end no wait is allowed on this thread; ``what`` is named in the error."""
        with self._inside(what):
            yield

    @contextmanager
    def allowed(self, reason: str) -> Iterator[None]:
        """A declared wait inside a launch. ``reason`` must not be empty: it is there for the reader.

        A launch inside it forbids again. Raises ValueError.
        """
        if not reason:
            raise ValueError("reason: a wait inside a launch needs one")
        with self._inside(None):
            yield

    @contextmanager
    def _inside(self, scope: str | None) -> Iterator[None]:
        if not self.on:
            yield
            return
        stack = self._stack()
        stack.append(scope)
        try:
            yield
        finally:
            stack.pop()

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
