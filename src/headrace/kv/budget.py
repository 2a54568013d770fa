"""A bound on bytes in memory: who wants more waits for a while, then does without."""

from __future__ import annotations

import threading
import time


class Budget:
    """Thread-safe. Whoever takes gives back exactly once."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.taken_bytes = 0
        self._changed = threading.Condition()

    def take(self, size: int, timeout_s: float = 0.0) -> bool:
        """False when ``size`` bytes were not free within the time; never waits for what can never be."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            if size > self.limit_bytes:
                return False
            while self.taken_bytes + size > self.limit_bytes:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    return False
            self.taken_bytes += size
            return True

    def give(self, size: int) -> None:
        with self._changed:
            self.taken_bytes -= size
            self._changed.notify_all()
