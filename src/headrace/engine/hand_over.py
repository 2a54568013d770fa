"""Handing sequences over between a prompt engine and a completion engine: its two ends, and the port in one process.

The giver offers a sequence one turn after its first token was reported, so that no later token overtakes it. While the
port is full the giver keeps the sequence and its blocks; when it has kept it too long, the request ends with an error.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from headrace.contract.handoff import LOST, GivingEnd, HandedOver, KVMover, TakingEnd
from headrace.contract.ports import StepObserver

from .ahead import Ahead
from .book import Entry
from .roster import Roster

PATIENCE_S = 60.0
CAPACITY = 16
MOST_COMPILING = 64
LOST_WORDS = "the prompt engine died before it had handed the request over"


class Relay(Protocol):
    """An engine's end of a hand-off; called on the loop's thread."""

    def turn(self, roster: Roster) -> None:
        """Before each plan."""
        ...

    def ended(self, roster: Roster, request_id: str, reason: str) -> bool:
        """A caller has ended a request. True: nothing is left to do here."""
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

    def has_room_for(self, request_id: str) -> bool:
        return self.has_room

    takes_ahead = False  # a copy inside one process is made in one go

    def send_ahead(self, request_id: str, places: Sequence[tuple[int, int]], content: Any) -> bool:
        return False

    def drop(self, request_id: str) -> None:
        """Nothing ever went ahead."""

    def leave(self) -> None:
        """What was offered can still be taken."""

    def holds(self, request_id: str) -> bool:
        with self._lock:
            return any(item.request.request_id == request_id for item in self._items)

    def end_later(self, request_id: str, reason: str) -> None:
        """The pair's client has said so already, by ``end``."""

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
    """The prompt engine's end. ``block_size``: tokens per block, for a port that takes KV ahead of a prompt's end."""

    def __init__(
        self, port: GivingEnd, mover: KVMover, block_size: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._port = port
        self._mover = mover
        self._clock = clock
        self._since: dict[int, float] = {}
        self._ahead = Ahead(port, mover, block_size) if port.takes_ahead else None

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
            elif self._port.has_room_for(entry.request_id):
                self._give(roster, entry, now)
            elif now - self._since[seq_id] > self._port.patience_s:
                roster.end_entry(entry, "error", f"no completion engine took it within {self._port.patience_s:g} s")
        if self._ahead is not None:
            self._ahead.turn(roster)

    def ended(self, roster: Roster, request_id: str, reason: str) -> bool:
        return False

    def _give(self, roster: Roster, entry: Entry, now: float) -> None:
        seen: Any = roster.core.inspect(entry.seq_id)
        blocks = seen["blocks"]
        sent = [0] * len(blocks) if self._ahead is None else self._ahead.leave(entry.request_id, len(blocks))
        item = HandedOver(
            request=entry.request,
            output_ids=tuple(seen["tokens"][len(entry.request.prompt_token_ids) :]),
            num_cached_tokens=entry.num_cached_tokens,
            grammar=entry.grammar,
            blocks=blocks,
            content=self._mover.read_blocks(
                [block for group, gone in zip(blocks, sent) for block in group[gone:] if block]
            ),
            deadline_s=now + self._port.patience_s,
            sent=sent,
        )
        roster.release(entry)
        if not self._port.offer(item):  # it closed at this very moment
            roster.end_entry(entry, "error", "the completion engine is gone")

    def close(self, roster: Roster, reason: str, error: str | None) -> None:
        """What is still here ends with the engine."""
        self._port.leave()


class Taker:
    """The completion engine's end: takes one at a time, gives it blocks, has them filled, and lets it run."""

    def __init__(
        self,
        port: TakingEnd,
        mover: KVMover,
        observer: StepObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._port = port
        self._mover = mover
        self._clock = clock
        self._observer = observer
        self._unplaced: deque[tuple[Entry, HandedOver]] = deque()
        self._compiling: list[tuple[Entry, HandedOver]] = []
        self._filling: list[tuple[Entry, Any]] = []

    def turn(self, roster: Roster) -> None:
        """Never waits: what cannot go on now goes on in a later turn."""
        self._let_filled_run(roster)
        self._let_compiled_in(roster)
        while self._unplaced or self._take(roster):
            if not self._place(roster):
                return

    def ended(self, roster: Roster, request_id: str, reason: str) -> bool:
        known = roster.has(request_id)
        if reason == LOST:
            if not known and not self._port.holds(request_id):
                self._port.end_later(request_id, reason)
                roster.end_unknown(request_id, "error", LOST_WORDS)
            return True
        if not known:
            self._port.end_later(request_id, reason)
        return False

    def _take(self, roster: Roster) -> bool:
        """Whether there may be something to do now: one was taken."""
        if len(self._compiling) >= MOST_COMPILING or (item := self._port.take()) is None:
            return False
        entry = roster.receive(item)
        ended = self._port.end_of(item.request.request_id)
        if ended is not None:
            roster.end_entry(entry, *(("error", LOST_WORDS) if ended == LOST else (ended,)))
        elif roster.entry_of(entry.seq_id) is not None:  # else the core has refused it
            wanted = item.request.sampling.structured_outputs is not None
            (self._compiling if wanted and entry.grammar is None else self._unplaced).append((entry, item))
        return True

    def _let_compiled_in(self, roster: Roster) -> None:
        """Those whose grammar is compiled are in the core by now; those that were refused never get one."""
        waiting: list[tuple[Entry, HandedOver]] = []
        for entry, item in self._compiling:
            if roster.entry_of(entry.seq_id) is None:
                continue
            (waiting if entry.grammar is None else self._unplaced).append((entry, item))
        self._compiling = waiting

    def _place(self, roster: Roster) -> bool:
        """Whether the next one may be taken."""
        if not self._unplaced:
            return True
        entry, item = self._unplaced[0]
        if roster.entry_of(entry.seq_id) is None:  # ended meanwhile
            self._unplaced.popleft()
            return True
        if roster.core.place(entry.seq_id):
            if self._observer:
                self._observer.placed(entry.seq_id)
            self._unplaced.popleft()
            self._filling.append((entry, self._fill(roster, entry, item)))
            return True
        if self._clock() > item.deadline_s:
            self._unplaced.popleft()
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
