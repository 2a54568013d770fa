"""The device side on a CPU: one thread that runs launches in the order they were queued.

Everything that touches model state runs here, so steps never overlap one another; what overlaps is the host's
planning with the device's arithmetic. A launch that raises poisons only its own future.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from headrace.contract.errors import WorkerError

MAX_QUEUED = 64  # launches; the loop keeps at most two steps (four launches) in flight


class DeviceThread:
    """A bounded queue and the thread that empties it."""

    def __init__(self, name: str = "headrace-device", enter: Callable[[], None] | None = None) -> None:
        """``enter`` runs first on the thread: where it binds itself to a processor."""
        self._enter = enter
        self._queue: queue.Queue[tuple[Callable[[], Any], Future[Any]] | None] = queue.Queue(MAX_QUEUED)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def launch(self, work: Callable[[], Any]) -> Future[Any]:
        """Queues ``work``. Raises WorkerError when the device is stuck (queue full) or closed."""
        if not self._thread.is_alive():
            raise WorkerError("the device thread has ended")
        future: Future[Any] = Future()
        try:
            self._queue.put_nowait((work, future))
        except queue.Full:
            raise WorkerError(f"the device has not taken up {MAX_QUEUED} launches: it is stuck") from None
        return future

    def _run(self) -> None:
        if self._enter is not None:
            self._enter()
        while (item := self._queue.get()) is not None:
            work, future = item
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

    def close(self, timeout_s: float = 10.0) -> None:
        """Lets queued launches finish, then ends the thread; gives up waiting at the deadline."""
        if self._thread.is_alive():
            self._queue.put(None, timeout=timeout_s)
            self._thread.join(timeout_s)
