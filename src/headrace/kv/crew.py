"""A crew: places that are asked at once, each on threads of its own, so that one that hangs holds up nobody else.

What a place is asked is bounded: one that has left too many questions open is not asked until it has answered some.
An answer that is an error is no answer. Nothing here waits for a place but for ``close``, up to a deadline.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from .backend import Backend

log = logging.getLogger("headrace.kv")

THREADS = 2  # of each place
MOST_OPEN = 32  # questions a place may leave unanswered
CLOSE_S = 10.0

T = TypeVar("T")
Answers = queue.SimpleQueue[tuple[int, Any]]
"""(place, its answer); None: it had none."""


class Crew:
    """Thread-safe. Owns the places."""

    def __init__(self, places: Sequence[Backend]) -> None:
        self._places = list(places)
        self._threads = [ThreadPoolExecutor(THREADS, thread_name_prefix=f"headrace-kv-{i}") for i in range(len(places))]
        self._open = [threading.BoundedSemaphore(MOST_OPEN) for _ in places]

    def __len__(self) -> int:
        return len(self._places)

    def ask(self, which: int, question: Callable[[Backend], T], answers: Answers) -> None:
        """Puts ``(which, answer)`` into ``answers``, now or later."""
        if not self._open[which].acquire(blocking=False):
            answers.put((which, None))
            return
        place = self._places[which]

        def work() -> None:
            answer = None
            try:
                answer = question(place)
            except Exception as error:  # a place must not raise; one that does has no answer
                log.debug("place %d failed: %s: %s", which, type(error).__name__, error)
            finally:
                self._open[which].release()
                answers.put((which, answer))

        try:
            self._threads[which].submit(work)
        except RuntimeError:  # closed
            self._open[which].release()
            answers.put((which, None))

    def close(self) -> None:
        """Lets every place close, those that hang up to a deadline."""
        closed: list[Future[None]] = []
        for threads, place in zip(self._threads, self._places):
            try:
                closed.append(threads.submit(place.close))
            except RuntimeError:
                continue  # it was closed before
            threads.shutdown(wait=False)
        _, hanging = wait(closed, CLOSE_S)
        if hanging:
            log.warning("%d places of a striped store did not close within %g s", len(hanging), CLOSE_S)
