"""Visit: one request of a tenant, from its wait to its end. Every sequence of it has a turn of its own.

Tokens are charged as they come, a prompt's when its sequence gets its turn. Used on the server's loop, where a turn is
told in a call of its own: whoever left has finished leaving.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import zip_longest

from .fair_queue import Ticket
from .registry import Tenant
from .tenancy import OverLimit, Tenancy


class Visit:
    """``costs``: prompt tokens of each sequence, in the order of their turns; 0 for another choice of the same prompt.
    ``waits``: whether the engine prepares something for it before it computes the prompt; by default none does.
    ``on_turn`` is called when more sequences may go, ``on_end`` when no turn came for too long."""

    def __init__(self, tenancy: Tenancy, tenant: Tenant, costs: Sequence[int], waits: Sequence[bool] = ()) -> None:
        self._tenancy = tenancy
        self._tenant = tenant
        self._loop = asyncio.get_running_loop()
        self._first = self._loop.create_future()
        self._waits = True  # no turn has come yet
        self._over = False
        self._patience: asyncio.TimerHandle | None = None
        self._came_s = tenancy.now_s()
        self._served = tenancy.served[tenant.name]
        self.num_granted = 0
        self.on_turn: Callable[[], None] | None = None
        self.on_end: Callable[[Exception], None] | None = None
        tenancy.usage.add(tenant.name, requests=1)
        tenancy.waiting[tenant.name] += 1
        known = zip_longest(costs, waits, fillvalue=False)
        self._tickets = [Ticket(tenant.name, cost, self._granted, waits) for cost, waits in known]
        for ticket in self._tickets:
            tenancy.queue.offer(ticket)

    def _granted(self) -> None:
        ticket = self._tickets[self.num_granted]
        self.num_granted += 1
        self._waits_no_more()
        self._wait_at_most(None)
        self._served.turns += 1
        self._served.wait_s += self._tenancy.now_s() - self._came_s
        self._served.prompt_tokens += ticket.cost
        self._tenancy.usage.add(self._tenant.name, prompt_tokens=ticket.cost)
        if not self._first.done():
            self._first.set_result(None)
        if self.on_turn is not None:
            self._loop.call_soon(self.on_turn)

    def _waits_no_more(self) -> None:
        if self._waits:
            self._waits = False
            self._tenancy.waiting[self._tenant.name] -= 1

    def fail(self, error: Exception) -> None:
        """Its turn will not come: who waits for it gets this instead."""
        if not self._first.done():
            self._first.set_exception(error)

    async def turn(self) -> None:
        """Returns when the first sequence may go to the engine. Raises OverLimit when that takes too long, and what
        ``fail`` was given."""
        try:
            async with asyncio.timeout(self._tenancy.limits.wait_s):
                await self._first
        except TimeoutError:
            raise _too_long() from None

    def rank(self, index: int) -> int:
        """The sequence's place in the engine's own queue, the least first. Known once its turn has come."""
        return self._tickets[index].rank

    def generated(self, index: int, tokens: int) -> None:
        """Tokens that came; the first ones say that the prompt has been computed."""
        self._tenancy.queue.started(self._tickets[index])
        self._tenancy.queue.count_tokens(self._tickets[index], tokens)
        self._tenancy.take_generated(self._tenant, tokens)
        self._served.generation_tokens += tokens
        self._tenancy.usage.add(self._tenant.name, generation_tokens=tokens)

    def ended(self, index: int) -> None:
        """A sequence is over; the others go on, or wait on with a deadline where none is under way."""
        self._tenancy.queue.leave(self._tickets[index])
        if all(one.state in ("waiting", "over") for one in self._tickets):
            self._wait_at_most(self._tenancy.limits.wait_s)

    def _wait_at_most(self, wait_s: float | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._patience = None if wait_s is None else self._loop.call_later(wait_s, self._gave_up)

    def _gave_up(self) -> None:
        if self.on_end is not None and self.num_granted < len(self._tickets):
            self.on_end(_too_long())

    def end(self, cached_tokens: int, num_sent: int) -> None:
        """Always called; safe to call twice. What the engine never got is not charged: only the first ``num_sent``."""
        if self._over:
            return
        self._over = True
        self._wait_at_most(None)
        self._waits_no_more()
        num_untaken = len(self._tickets) - self.num_granted
        self._served.wait_s += num_untaken * (self._tenancy.now_s() - self._came_s)
        self._give_back(num_sent)
        for ticket in reversed(self._tickets):  # those that wait go first: none of them gets a turn by this
            self._tenancy.queue.leave(ticket)
        self._tenancy.usage.add(self._tenant.name, cached_tokens=cached_tokens)

    def _give_back(self, num_sent: int) -> None:
        in_vain = self._tickets[num_sent : self.num_granted]  # their turn came when the engine was gone
        for ticket in in_vain:
            self._tenancy.queue.forgive(ticket)
        self._tenancy.usage.add(self._tenant.name, prompt_tokens=-sum(one.cost for one in in_vain))
        self._tenancy.give_back(self._tenant, sum(one.cost for one in self._tickets[num_sent:]))


def _too_long() -> OverLimit:
    return OverLimit("the wait in the queue was too long; try again later", 1, "queue_timeout")
