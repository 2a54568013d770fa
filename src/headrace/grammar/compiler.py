"""GrammarPool: compiles constraints on builder threads, so that no step waits for one.

What is compiled is kept, within a bound in bytes; what fails is not, and no text of a constraint outlives its
compilation. Equal constraints share one compilation. One that takes too long, or that nobody waits for any more, is
forsaken: others get another thread in its place.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, Protocol

from headrace.contract.errors import InvalidRequest
from headrace.contract.request import StructuredOutputs

from .backend import Backend, Matcher, Vocabulary
from .builders import Builders, Job
from .kept import KeptGrammars

SPARE = 4  # times as many threads as may be waited for: those left behind, too
QUEUE_S = 60.0  # to wait for a thread, beyond the timeout
ENTRY_BYTES = 4096  # what keeping one costs besides its own bytes, at the least
TOO_LONG = "took too long to compile: make it simpler"


class GrammarBackend(Protocol):
    """What the pool needs of a backend; tests bring their own."""

    def compile(self, wanted: StructuredOutputs) -> Any: ...
    def matcher(self, compiled: Any) -> Matcher: ...
    def num_bytes(self, compiled: Any) -> int: ...


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
        open_backend: Callable[[Vocabulary], GrammarBackend] = Backend,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self.timeout_s = timeout_s
        self._vocabulary = vocabulary
        self._open_backend = open_backend
        self._backend: GrammarBackend | None = None
        self._loading, self._lock = Lock(), Lock()  # the first is held for seconds
        self._builders = Builders(threads, SPARE * threads)
        self._kept: KeptGrammars[Grammar] = KeptGrammars(cache_bytes)
        self._under_way: dict[bytes, Compilation] = {}

    def request(self, wanted: StructuredOutputs, owner: str = "") -> Compilation:
        """Starts compiling on a thread of the owner's share, or joins those who wait for the same; returns at once."""
        key = _key(wanted)
        with self._lock:
            if (grammar := self._kept.get(key)) is not None:
                return self._settled(key, lambda future: future.set_result(grammar))
            known = self._under_way.get(key)
            if known is not None and known.hopeless:
                late = InvalidRequest(wanted.field, TOO_LONG)
                return self._settled(key, lambda future: future.set_exception(late))
            if known is None or not known.waiters:
                known = self._under_way[key] = Compilation(key, self.timeout_s, self._clock)
                known.job = self._builders.submit(partial(self._compile, wanted, known), owner)
            known.waiters += 1
            return known

    def _settled(self, key: bytes, settle: Callable[[Future[Grammar]], None]) -> Compilation:
        """One that is over before it began."""
        compilation = Compilation(key, self.timeout_s, self._clock)
        compilation.job = Job(lambda: None)
        settle(compilation.job.future)
        return compilation

    def forsake(self, compilation: Compilation) -> None:
        """One of those who asked for it has gone, or will not wait any longer; to be said once by each."""
        with self._lock:
            compilation.waiters -= 1
            if compilation.waiters > 0 or compilation.future.done():
                return
            compilation.hopeless = compilation.late and compilation.started_s is not None
            if not compilation.hopeless:
                self._forget(compilation)
        self._builders.forsake(compilation.job)

    def _forget(self, compilation: Compilation) -> None:
        if self._under_way.get(compilation.key) is compilation:
            del self._under_way[compilation.key]

    def _compile(self, wanted: StructuredOutputs, compilation: Compilation) -> Grammar:
        try:
            backend = self._loaded()
            compilation.started_s = self._clock()
            grammar = Grammar(backend, backend.compile(wanted))
            num_bytes = backend.num_bytes(grammar.compiled) + ENTRY_BYTES
            with self._lock:
                self._kept.put(compilation.key, grammar, num_bytes)
            return grammar
        finally:
            with self._lock:
                self._forget(compilation)

    def _loaded(self) -> GrammarBackend:
        with self._loading:
            if self._backend is None:
                self._backend = self._open_backend(self._vocabulary())
            return self._backend

    @property
    def kept_bytes(self) -> int:
        """Of compiled constraints, that are kept for who asks next."""
        return self._kept.num_bytes

    def close(self) -> None:
        """Waits for nobody."""
        self._builders.close()


def _key(wanted: StructuredOutputs) -> bytes:
    try:
        text = repr(wanted)
    except RecursionError:
        text = f"too deep to be known again: {time.monotonic_ns()}"  # the compiler refuses it
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


class Compilation:
    """One constraint on its way, for all who wait for it. The clock runs from its first second on a builder thread,
    loading left out. ``hopeless``: all gave it up as too slow, and it still runs."""

    def __init__(self, key: bytes, timeout_s: float, clock: Callable[[], float]) -> None:
        self.job: Job
        self.key = key
        self.waiters = 0
        self.hopeless = False
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
        since = self._asked_s + QUEUE_S if self.started_s is None else self.started_s
        return self._clock() > since + self._timeout_s
