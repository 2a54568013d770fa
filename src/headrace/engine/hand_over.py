"""Handing sequences over between a prompt engine and a completion engine: the port in one process, and its two ends.

The giver offers a sequence one turn after its first token was reported, so that no later token overtakes it. While the
port is full the giver keeps the sequence and its blocks; when it has kept it too long, the request ends with an error.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from headrace.contract.handoff import HandedOver, HandOffPort, KVMover
from headrace.contract.ports import StepObserver

from .book import Entry
from .roster import Roster

PATIENCE_S = 60.0
CAPACITY = 16


class Relay(Protocol):
    """An engine's end of a hand-off; called on the loop's thread."""

    def turn(self, roster: Roster) -> None:
        """Before each plan."""
        ...

    def close(self, roster: Roster, reason: str, error: str | None) -> None: ...


class LocalHandOff:
    """A HandOffPort between two engines of one process. ``wake`` is called after an offer."""

    def __init__(self, capacity: int = CAPACITY, patience_s: float = PATIENCE_S) -> None:
        self._capacity = capacity
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._items: deque[HandedOver] = deque()
        self._ends: dict[str, str] = {}
        self._closed = False
        self.wake: Callable[[], None] = lambda: None

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def has_room(self) -> bool:
        return len(self._items) < self._capacity

    @property
    def patience_s(self) -> float:
        return self._patience_s

    @property
    def num_waiting(self) -> int:
        return len(self._items)

    def offer(self, item: HandedOver) -> bool:
        with self._lock:
            if self._closed or not self.has_room:
                return False
            self._items.append(item)
        self.wake()
        return True

    def take(self) -> HandedOver | None:
        with self._lock:
            return self._items.popleft() if self._items else None

    def end(self, request_id: str, reason: str) -> None:
        """A caller's wish, kept until ``forget`` because the sequence may be on its way at this moment."""
        with self._lock:
            self._ends.setdefault(request_id, reason)

    def end_of(self, request_id: str) -> str | None:
        with self._lock:
            return self._ends.get(request_id)

    def forget(self, request_id: str) -> None:
        """The request has had its last delta."""
        with self._lock:
            self._ends.pop(request_id, None)

    def close(self) -> list[HandedOver]:
        with self._lock:
            self._closed = True
            left = list(self._items)
            self._items.clear()
            return left


class Giver:
    """The prompt engine's end. ``turn`` is called by the loop before it plans."""

    def __init__(self, port: HandOffPort, mover: KVMover, clock: Callable[[], float] = time.monotonic) -> None:
        self._port = port
        self._mover = mover
        self._clock = clock
        self._since: dict[int, float] = {}

    def turn(self, roster: Roster) -> None:
        """Offers every sequence whose prompt is computed, as far as there is room."""
        now = self._clock()
        prompted = roster.core.prompted_ids()
        self._since = {seq_id: self._since.get(seq_id, now) for seq_id in prompted}
        for seq_id in prompted:
            entry = roster.entry_of(seq_id)
            if entry is None or entry.num_reported == 0:
                continue
            if self._port.closed:
                roster.end_entry(entry, "error", "the completion engine is gone")
            elif self._port.has_room:
                self._give(roster, entry, now)
            elif now - self._since[seq_id] > self._port.patience_s:
                roster.end_entry(entry, "error", f"no completion engine took it within {self._port.patience_s:g} s")

    def _give(self, roster: Roster, entry: Entry, now: float) -> None:
        seen: Any = roster.core.inspect(entry.seq_id)
        blocks = seen["blocks"]
        item = HandedOver(
            request=entry.request,
            output_ids=tuple(seen["tokens"][len(entry.request.prompt_token_ids) :]),
            num_cached_tokens=entry.num_cached_tokens,
            grammar=entry.grammar,
            blocks=blocks,
            content=self._mover.read_blocks([block for group in blocks for block in group if block]),
            deadline_s=now + self._port.patience_s,
        )
        roster.release(entry)
        if not self._port.offer(item):  # it closed at this very moment
            roster.end_entry(entry, "error", "the completion engine is gone")

    def close(self, roster: Roster, reason: str, error: str | None) -> None:
        """What is still here ends with the engine."""


class Taker:
    """The completion engine's end: takes one at a time, gives it blocks, has them filled, and lets it run."""

    def __init__(
        self,
        port: HandOffPort,
        mover: KVMover,
        observer: StepObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._port = port
        self._mover = mover
        self._clock = clock
        self._observer = observer
        self._unplaced: tuple[Entry, HandedOver] | None = None
        self._filling: list[tuple[Entry, Any]] = []

    def turn(self, roster: Roster) -> None:
        """Never waits: what cannot go on now goes on in a later turn."""
        self._let_filled_run(roster)
        while self._unplaced is not None or self._take(roster):
            if not self._place(roster):
                return

    def _take(self, roster: Roster) -> bool:
        item = self._port.take()
        if item is None:
            return False
        entry = roster.receive(item)
        ended = self._port.end_of(item.request.request_id)
        if ended is not None:
            roster.end_entry(entry, ended)
        elif roster.entry_of(entry.seq_id) is not None:  # else the core has refused it
            self._unplaced = entry, item
        return True

    def _place(self, roster: Roster) -> bool:
        """Whether the next one may be taken."""
        if self._unplaced is None:
            return True
        entry, item = self._unplaced
        if roster.entry_of(entry.seq_id) is None:  # ended meanwhile
            self._unplaced = None
            return True
        if roster.core.place(entry.seq_id):
            if self._observer:
                self._observer.placed(entry.seq_id)
            self._unplaced = None
            self._filling.append((entry, self._fill(roster, entry, item)))
            return True
        if self._clock() > item.deadline_s:
            self._unplaced = None
            roster.end_entry(entry, "error", f"no room for it within {self._port.patience_s:g} s")
            return True
        return False

    def _fill(self, roster: Roster, entry: Entry, item: HandedOver) -> Any:
        seen: Any = roster.core.inspect(entry.seq_id)
        targets, rows, row = [], [], 0
        for theirs, ours in zip(item.blocks, seen["blocks"]):
            for i, source in enumerate(theirs):
                if source and i < len(ours) and ours[i]:
                    targets.append(ours[i])
                    rows.append(row)
                row += bool(source)
        return self._mover.write_blocks(targets, item.content, rows)

    def _let_filled_run(self, roster: Roster) -> None:
        waiting = []
        for entry, filled in self._filling:
            if not filled.done():
                waiting.append((entry, filled))
            elif (error := filled.exception()) is not None:
                roster.end_entry(entry, "error", f"its KV could not be taken over: {error}")
            elif roster.entry_of(entry.seq_id) is not None:
                roster.core.set_ready(entry.seq_id, True)
                if self._observer:
                    self._observer.readied(entry.seq_id, True)
        self._filling = waiting

    def close(self, roster: Roster, reason: str, error: str | None) -> None:
        """Whoever is still in the port ends here."""
        for item in self._port.close():
            roster.end_entry(roster.receive(item), reason, error)
