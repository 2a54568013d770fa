"""HostedGeneration: a generation as its host counts it. Says nothing to a client and decides no admission."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.contract.errors import HeadraceError
from headrace.contract.request import Request

from ..prompts import Prepared
from ..tenants.visit import Visit
from ..text.answer_forms import Mark
from .arrivals import Arrival, Finished
from .errors import as_http
from .generation import Generation
from .tenant_prompts import ranked

if TYPE_CHECKING:
    from .host import EngineHost


class HostedGeneration(Generation):
    """A generation that counts as open from its making to its close. A tenant's waits for its turn."""

    def __init__(
        self,
        host: EngineHost,
        prepared: Sequence[Prepared],
        arrival: Arrival,
        marks: Mapping[int, Mark] | None = None,
        visit: Visit | None = None,
    ) -> None:
        super().__init__(host.llm, prepared, host.metrics, marks)
        self._started_s = arrival.at_s  # what came before this belongs to the time that a client waits
        self._host = host
        self._arrival = arrival
        self._first_ns: int | None = None
        self._over = False
        self.told: Finished | None = None  # once it is over
        self._visit = visit
        self._num_sent = 0
        self._count = sum(len(one.requests) for one in prepared)
        self._count_open(self._count)
        host._generations.add(self)
        if visit is None:
            self.start()

    def _count_open(self, count: int) -> None:
        self._host.num_open += count
        if self._arrival.tenant is not None:
            self._host.open_by[self._arrival.tenant.name] += count

    async def turn(self) -> None:
        """Returns once work is with the engine; a tenant's further sequences follow as their turns come. Raises
        OverLimit, EngineDead."""
        if self._visit is not None:
            await self._visit.turn()
            self._visit.on_turn, self._visit.on_end = self._send_granted, self.fail
            self.send(self._visit.num_granted)

    def _send_granted(self) -> None:
        if self._visit is None or self._over or self.failure is not None:
            return
        try:
            self.send(self._visit.num_granted - self._num_sent)
        except HeadraceError as error:
            self.fail(error)

    def placed(self, request: Request) -> Request:
        index, self._num_sent = self._num_sent, self._num_sent + 1
        return request if self._visit is None else ranked(request, self._visit.rank(index))

    def fail(self, error: Exception) -> None:
        super().fail(error)
        if self._visit is not None:
            self._visit.fail(error)

    def tokens_came(self, index: int, num_tokens: int) -> None:
        self._first_ns = self._first_ns or self._arrival.now_ns()
        if self._visit is not None:
            self._visit.generated(index, num_tokens)

    def sequence_ended(self, index: int) -> None:
        if self._visit is not None:
            self._visit.ended(index)

    def close(self) -> None:
        if self._over:
            return
        self._over, cut = True, not self.finished
        super().close()
        self._count_open(-self._count)
        self._host._generations.discard(self)
        if self._visit is not None:
            self._visit.end(self.usage.cached_tokens, self._count - len(self._unsent))
        self.told = self._told(cut)

    def _told(self, cut: bool) -> Finished:
        usage, arrival, failure = self.usage, self._arrival, self.failure
        error = "abort" if cut else None
        reasons = [choice.finish_reason or "abort" for output in self.outputs for choice in output.outputs]
        return Finished(
            arrival.request_id,
            arrival.operation,
            self._host.names[0],
            None if arrival.tenant is None else arrival.tenant.name,
            arrival.at_ns,
            self._first_ns,
            arrival.now_ns(),
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens,
            reasons,
            error if failure is None else as_http(failure).word,
        )
