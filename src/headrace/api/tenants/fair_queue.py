"""FairQueue: whose sequence goes to the engine next. The tenant that was served fewest tokens per weight, always.

Pure logic, without clock, threads or sockets. Two bounds keep the engine responsive for whoever comes next: sequences
in it (``slots``, of which one tenant may hold ``share``, and no more than take a quarter of a step to decode), and
prompt tokens that have not brought a first token yet (``window``, a step's budget, of which one tenant may hold half:
the next step has room for another's prompt; a longer prompt counts as that half, and one that first waits inside the
engine, for its constraint or its pictures, as nothing: nobody is held up while the engine has nothing to do). Each
sequence of a request has a turn of its own, so that the widest request fits and holds up nobody. A tenant that was idle
begins level with the others, without what they have been charged ahead, and where nobody is there, with those who were:
idling earns no credit, and costs nothing either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Ticket:
    """One sequence's place. ``cost``: prompt tokens. ``granted`` is called when its turn comes; ``rank`` is then what
    its tenant will have been served with it: the engine too takes the lesser first. ``waits``: its prompt is not
    computed at once, and nobody knows when; then its rank alone decides."""

    tenant: str
    cost: int
    granted: Callable[[], None]
    waits: bool = False
    rank: int = 0
    state: str = "waiting"  # then prefilling, running, over


@dataclass(slots=True)
class Line:
    """One tenant's sequences. ``served``: tokens, divided by its weight."""

    weight: float
    served: float = 0.0
    owed: float = 0.0  # the part of it that is charged ahead: prompts without a first token
    running: int = 0
    prefilling: int = 0
    waiting: deque[Ticket] = field(default_factory=deque)

    @property
    def active(self) -> bool:
        return bool(self.waiting or self.running)


class FairQueue:
    """``offer``, then ``started``, ``count_tokens`` and ``leave`` as the sequence goes on."""

    def __init__(self, weights: dict[str, float], slots: int, window: int, share: float = 0.75) -> None:
        self._lines = {name: Line(weight) for name, weight in weights.items()}
        self._active: dict[str, Line] = {}  # those that wait or run, of thousands perhaps that do not
        self._slots = slots
        self._window = window
        self._own_window = window if len(weights) < 2 else max(1, window // 2)
        self._cap = slots if len(weights) < 2 else max(1, min(int(slots * share), window // 4))
        self._used = 0
        self._prefilling = 0
        self._floor = 0.0  # what whoever went idle had been served; a tenant that finds nobody begins there

    def waiting(self, tenant: str) -> int:
        return len(self._lines[tenant].waiting)

    def running(self, tenant: str) -> int:
        return self._lines[tenant].running

    def offer(self, ticket: Ticket) -> None:
        """Queues it; it may be granted at once."""
        line = self._lines[ticket.tenant]
        if not line.active:
            others = [one.served - one.owed for one in self._active.values()]
            line.served = max(line.served, min(others, default=self._floor))
            self._active[ticket.tenant] = line
        line.waiting.append(ticket)
        self._grant()

    def started(self, ticket: Ticket) -> None:
        """Its first token is there."""
        if ticket.state == "prefilling":
            ticket.state = "running"
            self._prefill(ticket, -1)
            self._grant()

    def count_tokens(self, ticket: Ticket, tokens: int) -> None:
        """Tokens generated for it."""
        line = self._lines[ticket.tenant]
        line.served += tokens / line.weight

    def forgive(self, ticket: Ticket) -> None:
        """It had its turn, but the engine never got it: its prompt costs its tenant nothing. Before ``leave``."""
        line = self._lines[ticket.tenant]
        line.served -= ticket.cost / line.weight

    def leave(self, ticket: Ticket) -> None:
        """Over, given up or failed, whatever its state. Safe to call twice."""
        line, state = self._lines[ticket.tenant], ticket.state
        ticket.state = "over"
        if state == "waiting":
            line.waiting.remove(ticket)
        elif state != "over":
            self._used -= 1
            line.running -= 1
            self._prefill(ticket, -1 if state == "prefilling" else 0)
        if not line.active:
            self._active.pop(ticket.tenant, None)
            self._floor = max(self._floor, line.served - line.owed)
        self._grant()

    def _grant(self) -> None:
        while (line := self._next()) is not None:
            ticket = line.waiting.popleft()
            line.served += ticket.cost / line.weight
            ticket.state, ticket.rank = "prefilling", int(line.served)
            self._used += 1
            self._prefill(ticket, 1)
            line.running += 1
            ticket.granted()

    def _prefill(self, ticket: Ticket, sign: int) -> None:
        self._prefilling += sign * self._weight(ticket)
        line = self._lines[ticket.tenant]
        line.prefilling += sign * self._weight(ticket)
        line.owed += sign * ticket.cost / line.weight

    def _weight(self, ticket: Ticket) -> int:
        """Prompt tokens of it that one step may hold."""
        return 0 if ticket.waits else min(ticket.cost, self._own_window)

    def _next(self) -> Line | None:
        """The line to serve. If its first prompt does not fit, nobody overtakes it: large prompts get their turn.
        But a tenant at its own bounds does not hold up the others."""
        open_lines = [line for line in self._active.values() if line.waiting and self._below_cap(line)]
        line = min(open_lines, key=lambda one: one.served, default=None)
        return line if line is not None and self._fits(line.waiting[0]) else None

    def _below_cap(self, line: Line) -> bool:
        return line.running < self._cap and line.prefilling + self._weight(line.waiting[0]) <= self._own_window

    def _fits(self, ticket: Ticket) -> bool:
        return self._used < self._slots and self._prefilling + self._weight(ticket) <= self._window
