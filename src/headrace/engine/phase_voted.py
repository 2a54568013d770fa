"""The phase-voted cadence: every rank of a data-parallel group runs the same kind of step, because experts are spread
over the group and ranks communicate inside a step.

Each step begins with a vote. A rank with nothing to do in it runs it empty, as company. The decision is a generator
that yields ballots and gets the group's answers, so that a test can drive many ranks without threads; ``plan`` drives
one rank over its collective. Never blocks longer than the collective's deadline.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TypeAlias

from headrace._core import Scheduler
from headrace.contract.plan import StepKind, StepPlan
from headrace.parallel.collectives import Alone, Collective
from headrace.parallel.vote import Ballot, Tally, decode_any, encode_any

OUTCOMES = ("prompt", "decode", "idle", "overruled")
"""What a decision came to. ``overruled``: no rank could schedule the prompt it had wished for, so all decoded."""
Turn: TypeAlias = Generator[list[int], list[int], StepPlan]
"""One step's decision: yields what to reduce, is sent the least over the group, returns the plan."""


def is_all_point(decode_step: int, all_interval: int) -> bool:
    """A prompt step is run here if every rank wants it."""
    return decode_step % all_interval == 0


def is_any_point(decode_step: int, any_interval: int) -> bool:
    """A prompt step is run here if one rank wants it. Goes before an ALL point at the same place."""
    return decode_step != 0 and decode_step % any_interval == 0


class PhaseVoted:
    """PREFILL or DECODE, by vote. ``decode_step`` counts decode steps since the last prompt step."""

    can_fork = True

    def __init__(
        self,
        collective: Collective | None = None,
        *,
        all_interval: int = 70,
        any_interval: int = 100,
        kv_limit: float = 0.9,
        time_budget_ns: int = 0,
    ) -> None:
        self._collective = collective or Alone()
        self._all_interval = all_interval
        self._any_interval = any_interval
        self._kv_limit = kv_limit
        self._time_budget_ns = time_budget_ns
        self.decode_step = 0
        self._outcomes = dict.fromkeys(OUTCOMES, 0)
        self._wait_s = 0.0

    def plan(self, core: Scheduler) -> StepPlan:
        """Raises GroupBroken when a rank is gone, silent or out of step."""
        turn = self.turn(core)
        try:
            question = next(turn)
            while True:
                start = time.monotonic()
                answer = self._collective.least(question)
                self._wait_s += time.monotonic() - start
                question = turn.send(answer)
        except StopIteration as end:
            plan: StepPlan = end.value
            return plan

    def votes(self) -> tuple[dict[str, int], float]:
        return dict(self._outcomes), self._wait_s

    def close(self) -> None:
        self._collective.close()

    def turn(self, core: Scheduler) -> Turn:
        """The decision of one step; the plan it returns has no step (-1) when the whole group has nothing to run."""
        tally = Tally.decode((yield self._ballot(core).encode()))
        if self._is_prompt_turn(tally):
            plan = core.plan(int(StepKind.PREFILL), time_budget_ns=tally.time_budget_ns)
            # The wish was a guess. If no rank could schedule a prompt after all, decode; otherwise a full engine with
            # a waiting queue would wish and fail for ever. An empty plan changed nothing, so it can be forgotten.
            if decode_any((yield encode_any(plan.step >= 0))):
                self.decode_step = 0
                self._outcomes["prompt"] += 1
                return plan if plan.step >= 0 else _company(core, StepKind.PREFILL)
            self._outcomes["overruled"] += 1
        if not tally.any_decodes:
            self._outcomes["idle"] += 1
            return core.plan(int(StepKind.DECODE))  # nothing anywhere; who can never be served is swept all the same
        self.decode_step += 1
        self._outcomes["decode"] += 1
        if self._collective.size == 1:
            return core.plan(int(StepKind.DECODE))
        return _company(core, StepKind.DECODE)

    def _ballot(self, core: Scheduler) -> Ballot:
        decodes = core.num_running + core.num_prompted > 0
        # The rest of the pool is kept for those that decode; where none does, a half-prefilled prompt may hold it.
        room = not decodes or core.num_used_blocks <= self._kv_limit * core.num_blocks
        return Ballot(
            wants_prompt=room and core.prefill_possible(),
            decodes=decodes,
            decode_step=self.decode_step,
            time_budget_ns=self._time_budget_ns,
        )

    def _is_prompt_turn(self, tally: Tally) -> bool:
        # With nobody decoding anywhere a lone request must not wait out empty decode steps.
        if is_any_point(self.decode_step, self._any_interval) or not tally.any_decodes:
            return tally.any_wants_prompt
        return is_all_point(self.decode_step, self._all_interval) and tally.all_want_prompt


class OneKind:
    """PROMPT and COMPLETION engines: always the same kind. In a group a rank with nothing runs it empty when another
    has something."""

    can_fork = False

    def __init__(self, kind: StepKind, collective: Collective | None = None, *, time_budget_ns: int = 0) -> None:
        self._kind = kind
        self._collective = collective or Alone()
        self._time_budget_ns = time_budget_ns

    def plan(self, core: Scheduler) -> StepPlan:
        """Raises GroupBroken when a rank is gone or silent."""
        budget = self._time_budget_ns
        if budget > 0:
            budget = self._collective.least([budget])[0]
        plan: StepPlan = core.plan(int(self._kind), time_budget_ns=budget)
        if not decode_any(self._collective.least(encode_any(plan.step >= 0))) or plan.step >= 0:
            return plan
        return _company(core, self._kind)

    def votes(self) -> tuple[dict[str, int], float]:
        return {}, 0.0

    def close(self) -> None:
        self._collective.close()


def _company(core: Scheduler, kind: StepKind) -> StepPlan:
    """A step of this kind, without slices if there is nothing for it here."""
    plan: StepPlan = core.plan(int(kind), companion=True)
    return plan
