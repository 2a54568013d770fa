"""The engine: one tick plans a step, launches it, and turns the previous step's result into deltas.

The overlapped loop and the synchronous loop are the same function: the synchronous one finishes the step it has just
launched before it returns, and so does either after a prompt step. The engine owns the scheduler and is not
thread-safe: one thread ticks; other threads reach it through ``intake`` only.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace._core import Scheduler
from headrace.contract.errors import GroupBroken, HeadraceError
from headrace.contract.plan import SequenceStart, StepKind, StepPlan
from headrace.contract.ports import KVConnector, StepObserver, WorkerPort
from headrace.contract.request import Request
from headrace.contract.result import TokenDelta
from headrace.contract.stats import EngineStats, ExpertLoad
from headrace.grammar.compiler import GrammarPool
from headrace.obs.launch_guard import LaunchGuard

from .book import Book
from .cadence import Cadence, Unified
from .drafting import Drafting
from .ending import attempt, close_each
from .hand_over import Relay
from .intake import Intake
from .kv_traffic import KVTraffic
from .outputs import collect_deltas
from .owned import OwnedOutputs
from .roster import Roster
from .stats import GraphSteps, StepCounts

_PREFILL = int(StepKind.PREFILL)  # once: an enum's member costs a look-up each time


@dataclass(slots=True)
class Step:
    """A step between launch and finish. ``error`` holds what went wrong at launch."""

    plan: StepPlan
    handle: Any = None
    error: Exception | None = None


class Engine:
    """Scheduler, worker and cadence behind submit / abort / tick."""

    def __init__(
        self,
        core: Scheduler,
        worker: WorkerPort,
        *,
        cadence: Cadence | None = None,
        overlap: bool = True,
        max_waiting: int = 4096,
        step_timeout_s: float = 120.0,
        observer: StepObserver | None = None,
        graph_steps: GraphSteps | None = None,
        grammars: GrammarPool | None = None,
        guard: LaunchGuard | None = None,
        drafting: Drafting | None = None,
        relay: Relay | None = None,
        connector: KVConnector | None = None,
        expert_load: Callable[[], ExpertLoad] | None = None,
        shares_open_blocks: bool = True,
    ) -> None:
        """``shares_open_blocks``: two sequences may hold a block that one of them still writes (see ``Forks``)."""
        self.core = core
        self.worker = worker
        self.intake = Intake(max_waiting)
        self._cadence = cadence or Unified()
        self._overlap = overlap
        self._timeout_s = step_timeout_s
        self._observer = observer
        self._drafting = drafting
        self._book = Book()
        self._relay = relay
        self._kv = KVTraffic(connector, core, observer, self.intake.poke)
        self._pending: Step | None = None
        self._deltas: list[TokenDelta] = []
        self._roster = Roster(
            core,
            self._book,
            observer,
            grammars,
            self._kv,
            tell=lambda last: self._deltas.append(last),
            wake=self.intake.poke,
            shares_open_blocks=shares_open_blocks,
        )
        self._ran = False
        self._num_waiting = 0  # as the loop last saw it: other threads must not ask the core
        self._guard = guard or LaunchGuard()
        self._outputs = OwnedOutputs(poison=self._guard.on)
        stored = connector.counts if connector else None
        self._counts = StepCounts(core, graph_steps, self._cadence.votes, stored, expert_load)
        self._counts.speculating = drafting is not None and drafting.on
        self.stats: EngineStats = self._counts.snapshot()  # replaced whole after each turn: any thread may read it

    # -- doors, any thread -------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queues a request. Raises QueueFull, or EngineDead when closed."""
        self.intake.submit(request, self._num_waiting)

    def accepts(self, count: int) -> bool:
        """Whether ``count`` more requests would be taken."""
        return self.intake.has_room(count, self._num_waiting)

    def abort(self, request_id: str) -> None:
        """Ends a request as soon as the loop comes by; its last delta says ``abort``."""
        self.intake.end(request_id, "abort")

    def stop(self, request_id: str) -> None:
        """Ends a request whose text is complete (a stop string was found); its last delta says ``stop``."""
        self.intake.end(request_id, "stop")

    @property
    def idle(self) -> bool:
        """Nothing lives here and no step is in flight."""
        return len(self._book) == 0 and self.resting  # a step without slices may keep other ranks company

    @property
    def quiet(self) -> bool:
        """Nothing lives here, and nobody is at the door."""
        return self.idle and not self.intake.busy

    @property
    def closed(self) -> bool:
        """It takes no more requests."""
        return self.intake.closed

    @property
    def resting(self) -> bool:
        """No step is in flight: whatever lives here cannot run yet."""
        return self._pending is None and not self._ran

    def rest(self, timeout_s: float) -> None:
        """Sleeps while no step is in flight, until something arrives or a wait is over. For who drives the turns."""
        if self.resting:
            self.intake.wait(timeout_s)

    # -- the loop, one thread -----------------------------------------------------------------------------------

    def tick(self) -> list[TokenDelta]:
        """One turn of the loop; returns the news it brought."""
        self._counts.overlap.turn_begins(self.resting or not len(self._book))
        self._outputs.release()
        self._drain()
        if self._relay is not None:
            self._relay.turn(self._roster)
        if self._drafting:
            self._drafting.price(self.core, self._observer)
        plan = self._cadence.plan(self.core)
        if self._observer:
            self._observer.planned(plan)  # an empty plan may have preempted someone
        if self._drafting:
            self._drafting.planned(self.core, plan, self._book, self._observer)
        self._roster.end_ignored()
        step = self._launch(plan) if plan.step >= 0 else None
        worked = step is not None or self._pending is not None
        self._ran = step is not None
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._finish(pending)
        if step is not None:
            self._launch_sample(step)
            if self._overlap and plan.kind != _PREFILL:
                self._pending = step
            else:
                self._finish(step)
        self._counts.overlap.turn_ends(worked)
        self._num_waiting = self.core.num_waiting
        self.stats = self._counts.snapshot()
        deltas, self._deltas = self._deltas, []
        return deltas

    def _drain(self) -> None:
        can_fork = self._cadence.can_fork
        if self.intake.busy:
            for request in self.intake.drain_requests():
                if request is None:
                    self._end_abandoned()
                else:
                    self._roster.take(request, can_fork)
            self._num_waiting = self.core.num_waiting
            self._drain_ends()
            for request, output_ids in self.intake.drain_lost():
                if self._relay is not None:
                    self._relay.lost(self._roster, request, output_ids)
        self._roster.turn(can_fork)
        self._kv.poll()

    def _end_abandoned(self) -> None:
        if self._relay is not None:
            self._relay.abandon(self._roster)
        self._roster.end_all("abort")
        self._deltas.clear()

    def _drain_ends(self) -> None:
        for request_id, reason in self.intake.drain_ends():
            if self._relay is not None:
                self._relay.ended(self._roster, request_id, reason)
            self._roster.end(request_id, reason)

    def _launch(self, plan: StepPlan) -> Step:
        step = Step(plan)
        self._counts.launched(plan)
        try:
            with self._guard.launching("the forward launch", plan.step):
                step.handle = self.worker.launch_forward(plan, self._starts(plan))
        except Exception as error:  # surfaces in _finish, in step order
            step.error = error
        return step

    def _starts(self, plan: StepPlan) -> list[SequenceStart]:
        starts: list[SequenceStart] = []
        if not plan.num_fresh:
            return starts
        for i, slice_index in enumerate(plan.fresh_slices.tolist()):
            entry = self._book.of_seq(int(plan.seq_ids[slice_index]))
            assert entry is not None, "the core planned a sequence that is not in the book"
            if entry.num_reported == 0:
                entry.num_cached_tokens = int(plan.fresh_cached[i])
            request = entry.request
            prompt_len = len(request.prompt_token_ids)
            about = (request.sampling, request.eos_ids, entry.grammar, request.pictures)
            starts.append(SequenceStart(entry.seq_id, prompt_len, *about))
        return starts

    def _launch_sample(self, step: Step) -> None:
        if step.error is None:
            try:
                with self._guard.launching("the sample launch", step.plan.step):
                    self.worker.launch_sample(step.handle)
            except Exception as error:
                step.error = error

    def _finish(self, step: Step) -> None:
        try:
            if step.error is not None:
                raise step.error
            with self._counts.overlap.waiting():
                result = self.worker.collect(step.handle, self._timeout_s)
        except GroupBroken:
            raise  # it failed in the midst of a step that other ranks share: there is no next one
        except Exception as error:
            if not self._kv.load_failed(step.plan.step):
                self._fail(step, error)
            return
        self._outputs.take(result)
        self._counts.overlap.finished(result.times)
        self._counts.last.finished(result.step, result.times)
        self._drain_ends()  # an abort that came during the step must not be reported as a normal end
        if self._kv.load_failed(step.plan.step):
            return  # what this step computed rests on a load that failed; its sequences are computed anew
        self._counts.sampled_tokens += len(result.tokens)
        commit = self.core.commit(result.step, result.num_valid, result.offsets, result.tokens)
        self._counts.committed(commit)
        if self._observer:
            self._observer.committed(result.step, result.num_valid, result.offsets, result.tokens)
        if self._drafting:
            self._drafting.finished(self.core, step.plan, result, commit, self._counts, self._observer)
        self._kv.save(self._book)
        self._deltas += collect_deltas(self._book, commit, result)
        if self._kv.voided(step.plan.step):
            return
        for seq_id, why in result.errors.items():
            self._roster.end_failed(seq_id, why)

    def _fail(self, step: Step, error: Exception) -> None:
        """The step's own requests end with an error; those of later steps in flight are recomputed."""
        message = str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
        alive = self.core.fail(step.plan.step)
        self._counts.failed_steps += 1
        if self._observer:
            self._observer.failed(step.plan.step, message)
        if self._kv.voided(step.plan.step):
            return  # its sequences are computed anew already
        for seq_id in alive:
            if (entry := self._book.of_seq(seq_id)) is not None:
                self._roster.end(entry.request.request_id, "error", message)

    def end(self, reason: str = "abort", error: str = "the engine was closed") -> list[TokenDelta]:
        """Closes the door and ends every live request; the last deltas. Waits for no step, and raises nothing.

        ``error`` is what requests are told when ``reason`` is ``error``.
        """
        self.intake.close()
        told = error if reason == "error" else None
        attempt(self._drain)
        if self._relay is not None:
            attempt(partial(self._relay.close, self._roster, reason, told))
        self._roster.end_all(reason, told)
        for request in self.intake.drain_requests():  # where draining has failed
            if request is not None:
                self._roster.end_unknown(request.request_id, reason, told)
        deltas, self._deltas = self._deltas, []
        return deltas

    def close(self, reason: str = "abort", error: str = "the engine was closed") -> list[TokenDelta]:
        """``end``, then lets the step in flight come home, and closes every part, whatever becomes of the others."""
        deltas = self.end(reason, error)
        watcher = [self._observer.close] if self._observer else []
        parts = [self._kv.close, self.worker.close, self._cadence.close, self._roster.close, *watcher]
        close_each(self._come_home, *parts)
        return deltas

    def _come_home(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            with suppress(GroupBroken):  # nobody waits for it any more
                self._finish(pending)
