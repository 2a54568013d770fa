"""Profiles of an engine's process: the side that takes them, and the side that waits for them.

One at a time in each process, and no longer than ``obs.stacks`` allows, whatever is asked for.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from headrace.contract.errors import EngineDead
from headrace.obs.stacks import sample

from .client import EngineClient
from .messages import Profile, Profiled

SLACK_S = 10.0  # beyond the profile itself: a busy engine's process is slow to say what it saw


class Profiler:
    """In the engine's process. ``begin`` returns at once; ``due`` has the answers there are, on the socket's thread."""

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        self._wake = wake
        self._busy = threading.Lock()
        self._answers: list[Profiled] = []

    def begin(self, asked: Profile) -> None:
        if not self._busy.acquire(blocking=False):
            self._answers.append(Profiled(asked.number, {}, "a profile is being taken already"))
            return
        threading.Thread(target=self._take, args=(asked,), name="headrace-profile", daemon=True).start()

    def _take(self, asked: Profile) -> None:
        try:
            self._answers.append(Profiled(asked.number, dict(sample(asked.seconds))))
        finally:
            self._busy.release()
        self._wake()

    def due(self) -> list[Profiled]:
        """What is to be sent; each once."""
        answers = []
        while self._answers:  # only this thread takes
            answers.append(self._answers.pop(0))
        return answers


class ProfileWaits:
    """In the front: who waits for which answer. Thread-safe."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[dict[str, int]]] = {}

    def ask(self, seconds: float, post: Callable[[Profile], None]) -> dict[str, int]:
        """Stacks and how often each was seen. Raises EngineDead when none come by the deadline."""
        number, waiting = next(self._numbers), Future[dict[str, int]]()
        with self._lock:
            self._waiting[number] = waiting
        try:
            post(Profile(number, seconds))
            return waiting.result(seconds + SLACK_S)
        except TimeoutError:
            raise EngineDead(f"the engine sent no profile within {seconds + SLACK_S:g} s") from None
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def take(self, answer: Profiled) -> None:
        with self._lock:
            waiting = self._waiting.pop(answer.number, None)
        if waiting is None:
            return  # whoever asked has given up
        if answer.error is None:
            waiting.set_result(answer.stacks)
        else:
            waiting.set_exception(EngineDead(answer.error))

    def fail_all(self, why: str) -> None:
        """Nobody will answer any more."""
        with self._lock:
            waiting, self._waiting = list(self._waiting.values()), {}
        for one in waiting:
            one.set_exception(EngineDead(why))


def profile_each(engines: Mapping[str, EngineClient], seconds: float) -> dict[str, dict[str, int]]:
    """Several engines during the same time, by the names given. Raises EngineDead."""
    with ThreadPoolExecutor(len(engines)) as pool:
        seen = pool.map(lambda engine: engine.profile(seconds)["engine"], engines.values())
        return dict(zip(engines, seen))
