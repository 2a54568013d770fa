"""Embeddings: requests on their way through the encoder. Bounded for all and for each tenant, by turns, piece by piece.

Whoever comes waits for one piece of what others brought, not for all of it. Tokens are charged once the encoder has
them: it computes a piece to its end, whoever has gone meanwhile.
Never knows what a body looks like.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from starlette.types import Receive

from headrace.contract.errors import EngineDead

from ..embedding_process import EmbeddingProcess
from ..tenants.fair_queue import FairQueue, Ticket
from ..tenants.registry import Tenant
from ..tenants.tenancy import OverLimit, Tenancy
from .errors import HttpError, stopping, too_busy
from .reply import while_connected

MAX_OPEN = 64  # requests; half of them one tenant's where there are several
PIECE = 32  # texts that are computed in one go
SLOTS = 2  # pieces with the encoder: one that is computed, one that is there when it is done
NO_WINDOW = 1 << 40  # tokens: there is no step to share
WAIT_S = 60.0  # the longest wait of a piece for its turn


class Embeddings:
    """``name``: what clients may call the encoder. Used on the server's loop."""

    def __init__(self, process: EmbeddingProcess, name: str) -> None:
        self.process = process
        self.name = name
        self._tenancy: Tenancy | None = None
        self._open = Counter[str]()
        self._tasks: set[asyncio.Task[None] | None] = set()
        self._calls: set[asyncio.Future[list[list[float]]]] = set()
        self._ended = False
        self._queue = FairQueue({"": 1.0}, SLOTS, NO_WINDOW)

    def take_turns(self, tenancy: Tenancy) -> None:
        """These are the tenants from now on."""
        self._tenancy = tenancy
        self._queue = FairQueue({one.name: one.weight for one in tenancy.registry.tenants}, SLOTS, NO_WINDOW)

    @property
    def num_open(self) -> int:
        return self._open.total()

    def check_room(self, tenant: Tenant | None) -> None:
        """Raises HttpError 429."""
        if self.num_open >= MAX_OPEN:
            raise too_busy(MAX_OPEN)
        several = self._tenancy is not None and len(self._tenancy.registry.tenants) > 1
        if tenant is not None and several and self._open[tenant.name] >= MAX_OPEN // 2:
            raise too_busy(MAX_OPEN // 2, f" of {tenant.name}")

    @contextmanager
    def place(self, tenant: Tenant | None) -> Iterator[None]:
        """Open as long as this lasts. Raises HttpError 429."""
        self.check_room(tenant)
        self._open[_name(tenant)] += 1
        try:
            yield
        finally:
            self._open[_name(tenant)] -= 1

    async def vectors(self, receive: Receive, tenant: Tenant | None, ids: Sequence[list[int]]) -> list[list[float]]:
        """One per text, as long as the client is there. Raises OverLimit, EngineDead, HttpError."""
        if self._ended:
            raise stopping()
        told: list[list[float]] = []
        begun: list[list[int]] = []
        charged = self._charge(tenant, sum(map(len, ids)))
        try:
            await while_connected(receive, self._work(tenant, ids, told, begun))
        finally:
            if charged is not None and self._tenancy is not None:
                self._tenancy.give_back(charged, sum(map(len, ids[len(begun) :])))
                self._tenancy.usage.add(charged.name, prompt_tokens=sum(map(len, begun)))
        if len(told) < len(ids):
            raise stopping() if self._ended else HttpError(400, "the client went away before its answer was complete")
        return told

    def _charge(self, tenant: Tenant | None, tokens: int) -> Tenant | None:
        if self._tenancy is not None and tenant is not None:
            self._tenancy.admit_prompt(tenant, tokens)
            self._tenancy.usage.add(tenant.name, requests=1)
        return tenant

    async def _work(
        self, tenant: Tenant | None, ids: Sequence[list[int]], told: list[list[float]], begun: list[list[int]]
    ) -> None:
        """``begun`` are the texts that the encoder got, ``told`` the vectors of those that it answered."""
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            for first in range(0, len(ids), PIECE):
                told += await self._piece(_name(tenant), list(ids[first : first + PIECE]), begun)
        finally:
            self._tasks.discard(task)

    async def _piece(self, owner: str, piece: list[list[int]], begun: list[list[int]]) -> list[list[float]]:
        turn = asyncio.get_running_loop().create_future()
        ticket = Ticket(owner, sum(map(len, piece)), lambda: None if turn.done() else turn.set_result(None))
        self._queue.offer(ticket)
        try:
            async with asyncio.timeout(WAIT_S):
                await turn
        except BaseException as error:
            self._queue.leave(ticket)
            if isinstance(error, TimeoutError):
                words = "the wait for the encoder was too long; try again later"
                raise OverLimit(words, 1, "queue_timeout") from None
            raise
        begun += piece
        try:
            return await self._computed(ticket, piece)
        except EngineDead:
            del begun[-len(piece) :]
            raise

    async def _computed(self, ticket: Ticket, piece: list[list[int]]) -> list[list[float]]:
        """The piece has its turn until the encoder is done with it, whether or not somebody still waits for it."""

        def over(call: asyncio.Future[list[list[float]]]) -> None:
            self._calls.discard(call)
            self._queue.leave(ticket)
            if not call.cancelled():
                call.exception()  # heard, if only here

        call = asyncio.ensure_future(self.process.vectors(piece))
        self._calls.add(call)
        call.add_done_callback(over)
        return await asyncio.shield(call)

    def end(self) -> None:
        """The server stops: whoever still waits is told."""
        self._ended = True
        for task in list(self._tasks):
            if task is not None:
                task.cancel()


def _name(tenant: Tenant | None) -> str:
    return "" if tenant is None else tenant.name
