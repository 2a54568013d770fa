"""The roster: how requests enter the core and leave it, whichever way they come and for whatever reason they go.

Requests may wait here for a grammar or for a sibling; others are received from, or released to, another engine. Every
one that was let in gets a last delta, unless it lives on elsewhere. Used by the loop's thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from headrace._core import Scheduler
from headrace.contract.errors import InvalidRequest
from headrace.contract.handoff import HandedOver
from headrace.contract.ports import StepObserver
from headrace.contract.request import Request
from headrace.contract.result import RowError, TokenDelta
from headrace.grammar.compiler import GrammarPool

from .admission import add_sequence, sequence_fields
from .book import Book, Entry
from .ending import attempt
from .forks import Forks
from .grammar_waits import GrammarWaits
from .kv_traffic import KVTraffic
from .outputs import end_delta
from .roles import ignored_message


class Roster:
    """``tell`` takes last deltas; ``wake`` is called from other threads when a wait is over."""

    def __init__(
        self,
        core: Scheduler,
        book: Book,
        observer: StepObserver | None,
        grammars: GrammarPool | None,
        kv: KVTraffic,
        *,
        tell: Callable[[TokenDelta], None],
        wake: Callable[[], None],
        shares_open_blocks: bool = True,
    ) -> None:
        self.core = core
        self._book = book
        self._observer = observer
        self._tell = tell
        self._forks = Forks(core, book, observer, shares_open_blocks)
        self._waits = GrammarWaits(grammars, wake)
        self._kv = kv

    # -- in -------------------------------------------------------------------------------------------------------

    def take(self, request: Request, can_fork: bool) -> None:
        """From the door: into the core, or into a wait."""
        entry = self._book.open(request)
        if request.sampling.structured_outputs is None:
            self._admit(entry, can_fork)
        else:
            self._waits.start(entry)

    def turn(self, can_fork: bool) -> None:
        """Lets in those whose wait is over."""
        for entry, error in self._waits.finished():
            if error is None:
                self._admit(entry, can_fork)
            else:
                self._refuse(entry, str(error), error.field if isinstance(error, InvalidRequest) else None)
        self._forks.turn(self._add)

    def _admit(self, entry: Entry, can_fork: bool) -> None:
        if entry.resumed:
            self._add(entry, entry.resumed)
        elif not (can_fork and self._forks.hold(entry)):
            self._add(entry)

    def _add(self, entry: Entry, outputs: Sequence[int] = ()) -> None:
        fields = sequence_fields(entry.request, outputs)
        try:
            add_sequence(self.core, entry.seq_id, fields)
        except (ValueError, TypeError, OverflowError) as error:  # the binding's verdict on this request
            self._refuse(entry, str(error))
            return
        if self._observer:
            self._observer.added(entry.seq_id, fields)
        if not outputs:
            self._kv.start(entry)

    def _refuse(self, entry: Entry, error: str, field: str | None = None) -> None:
        """Ends a request that never reached the core."""
        self._book.close(entry)
        self._tell(end_delta(entry, "error", error, field))

    def receive(self, item: HandedOver) -> Entry:
        """Takes a sequence over that was begun elsewhere; what was reported there is not reported again."""
        entry = self._book.open(item.request)
        entry.num_cached_tokens, entry.num_reported = item.num_cached_tokens, len(item.output_ids)
        entry.grammar, entry.resumed = item.grammar, item.output_ids
        if item.grammar is None and item.request.sampling.structured_outputs is not None:
            self._waits.start(entry)  # it came from another process, and what is compiled does not travel
        else:
            self._add(entry, item.output_ids)
        return entry

    # -- out ------------------------------------------------------------------------------------------------------

    def entry_of(self, seq_id: int) -> Entry | None:
        """The live request of a sequence."""
        return self._book.of_seq(seq_id)

    def entries(self) -> list[Entry]:
        """Every live request."""
        return self._book.entries()

    def has(self, request_id: str) -> bool:
        """Whether a request lives here, in whatever state."""
        return self._book.of_request(request_id) is not None

    def end(self, request_id: str, reason: str, error: str | None = None, error_field: str | None = None) -> None:
        """Ends a request if it lives here, in whatever state it is. ``error_field``: of the request, if it is its own
        fault."""
        entry = self._book.of_request(request_id)
        if entry is None:
            return
        waited = self._waits.cancel(entry) or self._forks.cancel(entry)
        if not waited:
            self._kv.cancel(entry)
            self.core.finish(entry.seq_id)
        self._book.close(entry)
        self._tell(end_delta(entry, reason, error, error_field))
        if self._observer and not waited:
            self._observer.finished(entry.seq_id, reason)

    def end_failed(self, seq_id: int, why: RowError) -> None:
        """Ends a sequence that has no next token, if it lives here."""
        if (entry := self._book.of_seq(seq_id)) is not None:
            wanted = entry.request.sampling.structured_outputs
            field = wanted.field if wanted is not None and why.by_structure else None
            self.end(entry.request.request_id, "error", why.text, field)

    def end_all(self, reason: str, error: str | None = None) -> None:
        """Ends every live request. One whose end fails, because the core itself is broken, is told all the same."""
        for entry in self._book.entries():
            attempt(partial(self.end, entry.request_id, reason, error))
            if self._book.of_seq(entry.seq_id) is not None:
                self._book.close(entry)
                self._tell(end_delta(entry, reason, error))

    def end_entry(self, entry: Entry, reason: str, error: str | None = None) -> None:
        """Ends a request that may have left the book: handed over, but not taken."""
        if self._book.of_seq(entry.seq_id) is None:
            self._tell(end_delta(entry, reason, error))
        else:
            self.end(entry.request.request_id, reason, error)

    def end_unknown(self, request_id: str, reason: str, error: str | None = None) -> None:
        """Tells the end of a request that never came here."""
        self._tell(TokenDelta(request_id=request_id, finish_reason=reason, error=error))

    def release(self, entry: Entry) -> None:
        """Forgets a sequence that lives on elsewhere; its blocks are given back, its caller hears nothing."""
        self.core.finish(entry.seq_id)
        self._book.close(entry)
        if self._observer:
            self._observer.finished(entry.seq_id, "handed over")

    def end_ignored(self) -> None:
        """Sequences the core has ended by itself; it knows them no more, so nothing is recorded."""
        for seq_id, reason in self.core.take_ignored():
            if (entry := self._book.of_seq(seq_id)) is not None:
                self._book.close(entry)
                self._tell(end_delta(entry, "error", *ignored_message(reason)))

    def close(self) -> None:
        """No more waits."""
        self._waits.close()
