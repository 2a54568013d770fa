"""GrammarWaits: requests whose constraint is being compiled. They enter the scheduler when it is done, not before.

So the scheduler, and a recording of it, never sees a sequence that cannot run for want of a grammar.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.contract.errors import HeadraceError, InvalidRequest, QueueFull
from headrace.grammar.compiler import TOO_LONG, Compilation, GrammarPool

from .book import Entry


class GrammarWaits:
    """Used by the loop's thread. ``wake`` is called from builder threads when there is news."""

    def __init__(self, pool: GrammarPool | None, wake: Callable[[], None]) -> None:
        self._pool = pool
        self._wake = wake
        self._waiting: dict[int, tuple[Entry, Compilation | None]] = {}

    def start(self, entry: Entry) -> None:
        """Begins compiling what the request asks for."""
        wanted = entry.request.sampling.structured_outputs
        assert wanted is not None
        compilation = None
        if self._pool is not None:
            compilation = self._pool.request(wanted, entry.request.tenant)
            compilation.future.add_done_callback(lambda _: self._wake())
        self._waiting[entry.seq_id] = entry, compilation

    def finished(self) -> list[tuple[Entry, HeadraceError | None]]:
        """Whose wait is over, in the order of arrival; with what was wrong, or with the grammar in the entry."""
        over = []
        for seq_id, (entry, compilation) in list(self._waiting.items()):
            settled, error = self._outcome(entry, compilation)
            if settled:
                del self._waiting[seq_id]
                over.append((entry, error))
        return over

    def _outcome(self, entry: Entry, compilation: Compilation | None) -> tuple[bool, HeadraceError | None]:
        wanted = entry.request.sampling.structured_outputs
        assert wanted is not None
        if compilation is None:
            return True, InvalidRequest(wanted.field, "this model has no tokenizer, so no text to constrain")
        if not compilation.future.done():
            return (True, self._forsake(compilation, wanted.field)) if compilation.late else (False, None)
        error = compilation.future.exception()
        if error is None:
            entry.grammar = compilation.future.result()
            return True, None
        return True, error if isinstance(error, InvalidRequest) else InvalidRequest(wanted.field, str(error))

    def _forsake(self, compilation: Compilation, field: str) -> HeadraceError:
        """Whose fault it was: the request's, or the others' before it."""
        assert self._pool is not None
        begun = compilation.started_s is not None
        self._pool.forsake(compilation)
        if begun:
            return InvalidRequest(field, TOO_LONG)
        return QueueFull("all threads that compile constraints are busy; try again later")

    def cancel(self, entry: Entry) -> bool:
        """Forgets a request; False when it was not waiting here."""
        _, compilation = self._waiting.pop(entry.seq_id, (None, None))
        if compilation is not None and self._pool is not None:
            self._pool.forsake(compilation)
        return compilation is not None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
