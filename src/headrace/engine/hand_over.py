"""Handing sequences over between a prompt engine and a completion engine: its two ends.

The giver offers a sequence one turn after its first token was reported, so that no later token overtakes it. While the
port is full the giver keeps the sequence and its blocks; when it has kept it too long, and the taker has stood still as
long, the request ends with an error.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Protocol

from headrace.contract.errors import EngineDead, HeadraceError
from headrace.contract.handoff import LOST, GivingEnd, HandedOver, KVMover, TakingEnd
from headrace.contract.ports import StepObserver
from headrace.contract.request import Request

from .ahead import Ahead
from .book import Entry
from .recall import Recall, lost, what_failed
from .roster import Roster

MOST_COMPILING = 64
MOST_COPIES = 16  # queued on the device and not done: its queue is bounded, and the steps themselves go through it
LOST_WORDS = "the prompt engine died before it had handed the request over"
SWALLOWED_WORDS = "the connection to the completion engine broke while the request was handed over"


def attempted(copy: Callable[[], Any]) -> Any:
    """A copy to come. One that the device refuses has failed: it costs its own sequence, not the loop."""
    try:
        return copy()
    except HeadraceError as error:
        return lost(error)


def unfinished(copies: Sequence[Any]) -> list[Any]:
    """Those still to come; what came without waiting is no future."""
    return [copy for copy in copies if isinstance(copy, Future) and not copy.done()]


class Relay(Protocol):
    """An engine's end of a hand-off; called on the loop's thread."""

    def turn(self, roster: Roster) -> None:
        """Before each plan."""
        ...

    def ended(self, roster: Roster, request_id: str, reason: str) -> None:
        """A caller has ended a request, which perhaps does not live here."""
        ...

    def lost(self, roster: Roster, request: Request, output_ids: tuple[int, ...]) -> None:
        """The giver of a request died when it had reported these tokens; perhaps it had handed the request over."""
        ...

    def abandon(self, roster: Roster) -> None:
        """Nobody waits for what lives here, or is on its way here, any more."""
        ...

    def close(self, roster: Roster, reason: str, error: str | None) -> None: ...


class Giver:
    """The prompt engine's end. ``block_size``: tokens per block, for a port that takes KV ahead of a prompt's end."""

    def __init__(
        self, port: GivingEnd, mover: KVMover, block_size: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._port = port
        self._mover = mover
        self._clock = clock
        self._since: dict[int, float] = {}
        self._copies: list[Any] = []
        self._ahead = Ahead(port, mover, block_size) if port.takes_ahead else None

    def turn(self, roster: Roster) -> None:
        """Offers every sequence whose prompt is computed, as far as there is room."""
        for item in self._port.take_lost():
            if not self._port.offer_bare(item, SWALLOWED_WORDS):
                roster.end_unknown(item.request.request_id, "error", SWALLOWED_WORDS)
        now = self._clock()
        prompted, self._copies = roster.core.prompted_ids(), unfinished(self._copies)
        self._since = {seq_id: self._since.get(seq_id, now) for seq_id in prompted}
        for seq_id in prompted:
            entry = roster.entry_of(seq_id)
            if entry is None or entry.num_reported == 0:
                continue
            if self._port.closed:
                roster.end_entry(entry, "error", "the completion engine is gone")
            elif self._port.has_room_for(entry.request_id):
                if len(self._copies) < MOST_COPIES:
                    self._give(roster, entry, now)
            elif now - max(self._since[seq_id], self._port.moved_s) > self._port.patience_s:
                self._give_up(roster, entry, now, f"no completion engine took it within {self._port.patience_s:g} s")
        if self._ahead is not None:
            self._ahead.turn(roster)

    def ended(self, roster: Roster, request_id: str, reason: str) -> None:
        """The roster has it, or nobody here."""

    def lost(self, roster: Roster, request: Request, output_ids: tuple[int, ...]) -> None:
        """It is told to who takes."""

    def abandon(self, roster: Roster) -> None:
        """What was on its way from here ends over there."""
        self._port.take_lost()

    def _give(self, roster: Roster, entry: Entry, now: float) -> None:
        seen: Any = roster.core.inspect(entry.seq_id)
        blocks = seen["blocks"]
        sent = [0] * len(blocks) if self._ahead is None else self._ahead.leave(entry.request_id, len(blocks))
        left = [block for group, gone in zip(blocks, sent) for block in group[gone:] if block]
        item = self._item(entry, seen, now)
        content = attempted(lambda: self._mover.read_blocks(left))
        self._copies = unfinished([*self._copies, content])
        item = replace(item, blocks=blocks, content=content, sent=sent)
        roster.release(entry)
        if not self._port.offer(item):  # it closed at this very moment
            roster.end_entry(entry, "error", "the completion engine is gone")

    def _item(self, entry: Entry, seen: Any, now: float) -> HandedOver:
        """The sequence without any KV."""
        outputs = tuple(seen["tokens"][len(entry.request.prompt_token_ids) :])
        deadline = now + self._port.patience_s
        return HandedOver(entry.request, outputs, entry.num_cached_tokens, entry.grammar, (), None, deadline)

    def _give_up(self, roster: Roster, entry: Entry, now: float, why: str) -> None:
        """There is no room for its KV over there. Perhaps the store has it."""
        if self._port.offer_bare(self._item(entry, roster.core.inspect(entry.seq_id), now), why):
            roster.release(entry)
        else:
            roster.end_entry(entry, "error", why)

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
        recall: Recall | None = None,
    ) -> None:
        self._port = port
        self._mover = mover
        self._clock = clock
        self._observer = observer
        self._recall = recall
        self._moved_s = -math.inf
        self._unplaced: deque[tuple[Entry, HandedOver]] = deque()
        self._compiling: list[tuple[Entry, HandedOver]] = []
        self._filling: list[tuple[Entry, Any]] = []

    def turn(self, roster: Roster) -> None:
        """Never waits: what cannot go on now goes on in a later turn."""
        if roster.core.num_running > 0:  # it comes to an end, and then there is room
            self._moved_s = self._clock()
            self._port.moved(self._moved_s)
        self._let_filled_run(roster)
        self._let_compiled_in(roster)
        if self._recall is not None:
            self._recall.turn(roster, self._late)
        while len(self._filling) < MOST_COPIES and (self._unplaced or self._take(roster)):
            if not self._place(roster):
                return

    def ended(self, roster: Roster, request_id: str, reason: str) -> None:
        if not roster.has(request_id):
            self._port.end_later(request_id, reason)

    def lost(self, roster: Roster, request: Request, output_ids: tuple[int, ...]) -> None:
        name = request.request_id
        if roster.has(name) or self._port.holds(name):
            return
        ended = self._port.end_of(name)
        self._port.end_later(name, ended or LOST)
        if ended not in (None, LOST):  # nobody waits for it any more
            roster.end_unknown(name, str(ended))
        elif self._recall is None:
            roster.end_unknown(name, "error", LOST_WORDS)
        else:
            deadline, content = self._clock() + self._port.patience_s, lost(EngineDead(LOST_WORDS))
            self._receive(roster, HandedOver(request, output_ids, 0, None, (), content, deadline))

    def abandon(self, roster: Roster) -> None:
        """What waits in the port never begins; the rest lives in the roster."""
        while self._port.take() is not None:
            pass

    def _take(self, roster: Roster) -> bool:
        """Whether there may be something to do now: one was taken."""
        if len(self._compiling) >= MOST_COMPILING or (item := self._port.take()) is None:
            return False
        ended = self._port.end_of(item.request.request_id)
        if roster.has(item.request.request_id):  # given up for lost, it has begun again already
            return True
        entry = self._receive(roster, item)
        if ended is not None:
            roster.end_entry(entry, *(("error", LOST_WORDS) if ended == LOST else (ended,)))
        return True

    def _receive(self, roster: Roster, item: HandedOver) -> Entry:
        entry = roster.receive(item)
        wanted = item.request.sampling.structured_outputs is not None
        if roster.entry_of(entry.seq_id) is not None:  # else the core has refused it
            (self._compiling if wanted and entry.grammar is None else self._unplaced).append((entry, item))
        return entry

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
        if self._recall is not None and (error := what_failed(item.content)) is not None:
            self._unplaced.popleft()
            why = str(error) if isinstance(error, EngineDead) else f"its KV could not be taken over: {error}"
            self._recall.begin(roster, entry, item, why)
            return True
        if roster.core.place(entry.seq_id):
            if self._observer:
                self._observer.placed(entry.seq_id)
            self._unplaced.popleft()
            self._filling.append((entry, self._fill(roster, entry, item)))
            return True
        if self._late(item):
            self._unplaced.popleft()
            roster.end_entry(entry, "error", f"no room for it within {self._port.patience_s:g} s")
            return True
        return False

    def _late(self, item: HandedOver) -> bool:
        """Whether it has waited for too long beside an engine that stands still."""
        return self._clock() > max(item.deadline_s, self._moved_s + self._port.patience_s)

    def _fill(self, roster: Roster, entry: Entry, item: HandedOver) -> Any:
        seen: Any = roster.core.inspect(entry.seq_id)
        targets, rows, row = [], [], 0
        for theirs, ours in zip(item.blocks, seen["blocks"]):
            for i, source in enumerate(theirs):
                if source and i < len(ours) and ours[i]:
                    targets.append(ours[i])
                    rows.append(row)
                row += bool(source)
        return attempted(lambda: self._mover.write_blocks(targets, item.content, rows))

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
