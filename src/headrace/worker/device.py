"""The device side on a CPU: one thread that runs launches in the order they were queued.

Everything that touches model state runs here, so steps never overlap one another; what overlaps is the host's
planning with the device's arithmetic. A launch that raises poisons only its own ticket.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from time import perf_counter_ns
from typing import Any

from headrace.contract.errors import WorkerError
from headrace.obs.launch_guard import LaunchGuard

MAX_QUEUED = 64
"""Launches. The loop keeps two steps (four launches) in flight, and with them two saves. Loads (``kv_traffic``) and
copies of a hand-off (``hand_over``) are bounded by who asks for them: a step never finds the queue full."""


class Ticket(Future[Any]):
    """A launch on its way. Waiting for it asks the guard; the times are the device's, ns of ``perf_counter``."""

    def __init__(self, guard: LaunchGuard) -> None:
        super().__init__()
        self._guard = guard
        self.started_ns = 0
        self.ended_ns = 0

    def result(self, timeout: float | None = None) -> Any:
        """Raises HiddenWait inside a launch, even when the result is there: whether it is, is luck."""
        self._guard.check("result() of a launch")
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._guard.check("exception() of a launch")
        return super().exception(timeout)


class DeviceThread:
    """A bounded queue and the thread that empties it."""

    def __init__(
        self,
        name: str = "headrace-device",
        guard: LaunchGuard | None = None,
        enter: Callable[[], None] | None = None,
    ) -> None:
        """``enter`` runs first on the thread: where it binds itself to a processor."""
        self._guard = guard or LaunchGuard()
        self._enter = enter
        self._queue: queue.Queue[tuple[Callable[[], Any], Ticket] | None] = queue.Queue(MAX_QUEUED)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def launch(self, work: Callable[[], Any]) -> Ticket:
        """Queues ``work``. Raises WorkerError when the device is stuck (queue full) or closed."""
        if not self._thread.is_alive():
            raise WorkerError("the device thread has ended")
        ticket = Ticket(self._guard)
        try:
            self._queue.put_nowait((work, ticket))
        except queue.Full:
            raise WorkerError(f"the device has not taken up {MAX_QUEUED} launches: it is stuck") from None
        return ticket

    def _run(self) -> None:
        if self._enter is not None:
            self._enter()
        while (item := self._queue.get()) is not None:
            work, ticket = item
            ticket.started_ns = perf_counter_ns()
            try:
                result = work()
            except BaseException as error:
                ticket.ended_ns = perf_counter_ns()
                ticket.set_exception(error)
            else:
                ticket.ended_ns = perf_counter_ns()  # before anyone who waits can go on
                ticket.set_result(result)

    def close(self, timeout_s: float = 10.0) -> None:
        """Lets queued launches finish, then ends the thread; gives up waiting at the deadline."""
        self._guard.check("close() of the device")
        if self._thread.is_alive():
            try:
                self._queue.put(None, timeout=timeout_s)
            except queue.Full:  # it is stuck: whoever closes has more to close
                return
            self._thread.join(timeout_s)
