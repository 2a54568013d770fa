"""GrammarPool: compiles constraints on builder threads, so that no step waits for one.

A compilation that takes too long, or whose request has gone, is forsaken: others get another thread in its place.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol

from headrace.contract.request import StructuredOutputs

from .backend import Backend, Matcher, Vocabulary
from .builders import Builders, Job

SPARE = 4  # times as many threads as may be waited for: those left behind, too


class GrammarBackend(Protocol):
    """What the pool needs of a backend; tests bring their own."""

    def compile(self, wanted: StructuredOutputs) -> Any: ...
    def matcher(self, compiled: Any) -> Matcher: ...


@dataclass(frozen=True, slots=True)
class Grammar:
    """A compiled constraint; ``matcher`` starts a sequence at its beginning."""

    backend: GrammarBackend
    compiled: Any

    def matcher(self) -> Matcher:
        return self.backend.matcher(self.compiled)


class GrammarPool:
    """Thread-safe. The vocabulary is asked for, and the backend loaded, when the first constraint comes."""

    def __init__(
        self,
        vocabulary: Callable[[], Vocabulary],
        *,
        threads: int = 4,
        timeout_s: float = 20.0,
        cache_bytes: int = 10 << 30,
        open_backend: Callable[[Vocabulary, int], GrammarBackend] = Backend,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self.timeout_s = timeout_s
        self._vocabulary = vocabulary
        self._cache_bytes = cache_bytes
        self._open_backend = open_backend
        self._backend: GrammarBackend | None = None
        self._lock = Lock()
        self._builders = Builders(threads, SPARE * threads)

    def request(self, wanted: StructuredOutputs) -> Compilation:
        """Starts compiling; returns at once."""
        compilation = Compilation(self.timeout_s, self._clock)
        compilation.job = self._builders.submit(lambda: self._compile(wanted, compilation))
        return compilation

    def forsake(self, compilation: Compilation) -> None:
        """Whoever asked for it has gone, or will not wait any longer."""
        self._builders.forsake(compilation.job)

    def _compile(self, wanted: StructuredOutputs, compilation: Compilation) -> Grammar:
        backend = self._loaded()
        compilation.started_s = self._clock()
        return Grammar(backend, backend.compile(wanted))

    def _loaded(self) -> GrammarBackend:
        with self._lock:
            if self._backend is None:
                self._backend = self._open_backend(self._vocabulary(), self._cache_bytes)
            return self._backend

    def close(self) -> None:
        """Waits for nobody."""
        self._builders.close()


class Compilation:
    """One constraint on its way. The clock runs from its first second on a builder thread, loading left out."""

    def __init__(self, timeout_s: float, clock: Callable[[], float]) -> None:
        self.job: Job
        self.started_s: float | None = None
        self._clock = clock
        self._asked_s = clock()
        self._timeout_s = timeout_s

    @property
    def future(self) -> Future[Grammar]:
        """Done when there is a grammar, or a reason why there is none."""
        return self.job.future

    @property
    def late(self) -> bool:
        """Took too long, in a queue whose threads are all stuck or on a thread."""
        since = self._asked_s + 60.0 if self.started_s is None else self.started_s
        return self._clock() > since + self._timeout_s
