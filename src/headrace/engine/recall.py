"""Recalling: a handed-over sequence whose KV did not come goes on with what the common store has of it.

Its stored grains become a prefix hit; the little that is missing (the rest of its last grain, what was drawn) is
computed in decode steps, so its tokens are those it would have had. Where the store lacks more, the request ends with
the reason for which its KV did not come. Used by the completion engine's loop only; never waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from headrace.contract.handoff import HandedOver
from headrace.contract.ports import KVConnector, KVSession, StepObserver

from .book import Entry
from .kv_traffic import open_session
from .roster import Roster

MOST_COMPUTED = 256  # tokens of one sequence; more would hold up everybody who decodes


@dataclass(slots=True)
class _Call:
    """One sequence on its way: asked for, then imported, then placed, then loaded."""

    entry: Entry
    item: HandedOver
    why: str
    session: KVSession
    load: Future[None] | None = None
    placed: bool = False

    @property
    def num_tokens(self) -> int:
        return len(self.item.request.prompt_token_ids) + len(self.item.output_ids)


class Recall:
    """``wake`` is called from a thread of the connector's when a fetch is over."""

    def __init__(
        self,
        connector: KVConnector,
        observer: StepObserver | None,
        wake: Callable[[], None],
    ) -> None:
        self._connector, self._observer, self._wake = connector, observer, wake
        self._calls: deque[_Call] = deque()
        self._broken = False  # a load failed: what the pool names may never have been written

    def begin(self, roster: Roster, entry: Entry, item: HandedOver, why: str) -> None:
        """For a sequence that waits in the core. ``why``: what its request is told if this is for nothing."""
        session = open_session(self._connector, roster.core, entry.seq_id, item.request, self._wake, self._broken)
        self._calls.append(_Call(entry, item, why, session))

    def turn(self, roster: Roster, late: Callable[[HandedOver], bool]) -> None:
        """In order, one at a time: nobody may hit what an earlier one has named and not loaded yet. ``late``: whether
        a sequence has waited too long for room."""
        while self._calls and self._over(roster, self._calls[0], late):
            self._calls.popleft()

    def _over(self, roster: Roster, call: _Call, late: Callable[[HandedOver], bool]) -> bool:
        if roster.entry_of(call.entry.seq_id) is None and call.load is None:  # ended meanwhile
            call.session.cancel()
            return True
        count = call.session.num_external_tokens()
        if count is None:
            return False
        if not call.placed and roster.entry_of(call.entry.seq_id) is not None:
            self._place(roster, call, count, late)
        if call.load is not None and not call.load.done():
            return False
        return self._finish(roster, call)

    def _place(self, roster: Roster, call: _Call, count: int, late: Callable[[HandedOver], bool]) -> None:
        core, seq_id = roster.core, call.entry.seq_id
        if call.load is None and count > call.session.first and not self._broken:
            self._import(roster, call, count)
        here = core.cached_tokens(seq_id)
        if call.num_tokens - max(here, count if call.load is None else here) > MOST_COMPUTED or self._broken:
            roster.end_entry(call.entry, "error", call.why)
        elif call.num_tokens - here <= MOST_COMPUTED and core.place(seq_id, True):
            call.placed = True
            if self._observer:
                self._observer.placed(seq_id, True)
        elif late(call.item):
            roster.end_entry(call.entry, "error", f"{call.why}; and there was no room for it")

    def _import(self, roster: Roster, call: _Call, count: int) -> None:
        blocks = roster.core.import_prefix(call.entry.seq_id, count, call.session.first)
        if self._observer:
            self._observer.imported(call.entry.seq_id, count, call.session.first)
        if not blocks:
            return  # there is no room now
        try:
            call.load = call.session.load(blocks)
        except Exception as error:  # the blocks have names already: whoever would hit them must not
            call.load = Future()
            call.load.set_exception(error)

    def _finish(self, roster: Roster, call: _Call) -> bool:
        """Nothing is being loaded. Whether this sequence is done with."""
        error = None if call.load is None else call.load.exception()
        if error is not None:
            self._broken = True
            self._connector.disable(f"a load failed: {error}")
            roster.end_entry(call.entry, "error", f"{call.why}; and it could not be loaded: {error}")
            return True
        alive = roster.entry_of(call.entry.seq_id) is not None
        if alive and call.placed:
            roster.core.set_ready(call.entry.seq_id, True)
            if self._observer:
                self._observer.readied(call.entry.seq_id, True)
        over = call.placed or not alive
        if over:  # what was fetched and not loaded is memory of the connector's: it was placed without, perhaps
            call.session.cancel()
        return over


def what_failed(content: Any) -> BaseException | None:
    """Why a content that was to come is known not to."""
    failed = isinstance(content, Future) and content.done()
    return content.exception() if failed else None


def lost(error: Exception) -> Future[Any]:
    """The content of a sequence of which none will come."""
    content: Future[Any] = Future()
    content.set_exception(error)
    return content
