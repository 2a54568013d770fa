"""The engine: one tick plans a step, launches it, and turns the previous step's result into deltas.

The overlapped loop and the synchronous loop are the same function: the synchronous one finishes the step it has just
launched before it returns. The engine owns the scheduler and is not thread-safe: one thread ticks; other threads
reach it through ``intake`` only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace._core import ExtraKeys, Scheduler
from headrace.contract.errors import HeadraceError
from headrace.contract.plan import SequenceStart, StepPlan
from headrace.contract.ports import KVConnector, StepObserver, WorkerPort
from headrace.contract.request import Request
from headrace.contract.result import TokenDelta
from headrace.contract.stats import EngineStats
from headrace.grammar.compiler import GrammarPool

from .book import Book, Entry
from .cadence import Cadence, Unified
from .grammar_waits import GrammarWaits
from .intake import Intake
from .kv_traffic import KVTraffic
from .outputs import collect_deltas, end_delta
from .roles import ignored_message
from .stats import GraphSteps, StepCounts


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
        connector: KVConnector | None = None,
    ) -> None:
        self.core = core
        self.worker = worker
        self.intake = Intake(max_waiting)
        self._cadence = cadence or Unified()
        self._overlap = overlap
        self._timeout_s = step_timeout_s
        self._observer = observer
        self._book = Book()
        self._waits = GrammarWaits(grammars, self.intake.poke)
        self._kv = KVTraffic(connector, core, observer, self.intake.poke)
        self._pending: Step | None = None
        self._deltas: list[TokenDelta] = []
        self._ran = False
        self._counts = StepCounts(core, graph_steps, connector.counts if connector else None)
        self.stats: EngineStats = self._counts.snapshot()  # replaced whole after each turn: any thread may read it

    # -- doors, any thread -------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queues a request. Raises InvalidRequest when the queue is full, EngineDead when closed."""
        self.intake.submit(request, self.core.num_waiting)

    def accepts(self, count: int) -> bool:
        """Whether ``count`` more requests would be taken."""
        return self.intake.has_room(count, self.core.num_waiting)

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
    def resting(self) -> bool:
        """No step is in flight: whatever lives here cannot run yet."""
        return self._pending is None and not self._ran

    # -- the loop, one thread -----------------------------------------------------------------------------------

    def tick(self) -> list[TokenDelta]:
        """One turn of the loop; returns the news it brought."""
        self._drain()
        plan = self._cadence.plan(self.core)
        if self._observer:
            self._observer.planned(plan)  # an empty plan may have preempted someone
        self._end_ignored()
        step = self._launch(plan) if plan.step >= 0 else None
        self._ran = step is not None
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._finish(pending)
        if step is not None:
            self._launch_sample(step)
            if self._overlap:
                self._pending = step
            else:
                self._finish(step)
        self.stats = self._counts.snapshot()
        deltas, self._deltas = self._deltas, []
        return deltas

    def _drain(self) -> None:
        for request in self.intake.drain_requests():
            entry = self._book.open(request)
            if request.sampling.structured_outputs is None:
                self._add(entry)
            else:
                self._waits.start(entry)
        self._drain_ends()
        for entry, error in self._waits.finished():
            if error is None:
                self._add(entry)
            else:
                self._refuse(entry, str(error), error.field)
        self._kv.poll()

    def _refuse(self, entry: Entry, error: str, field: str | None = None) -> None:
        """Ends a request that never reached the core."""
        self._book.close(entry)
        self._deltas.append(end_delta(entry, "error", error, field))

    def _add(self, entry: Entry) -> None:
        request, sampling = entry.request, entry.request.sampling
        fields = {
            "prompt": request.prompt_token_ids,
            "max_tokens": sampling.max_tokens if sampling.max_tokens is not None else 2**31 - 1,
            "min_tokens": sampling.min_tokens,
            "eos_ids": list(request.eos_ids),
            "stop_ids": list(sampling.stop_token_ids or ()),
            "ignore_eos": sampling.ignore_eos,
            "reads_cache": sampling.prompt_logprobs is None,
            "priority": request.priority,
            "arrival": request.arrival,
            "salt": request.cache_salt,
            "adapter": request.adapter,
        }
        try:
            add_sequence(self.core, entry.seq_id, fields)
        except (
            ValueError,
            TypeError,
            OverflowError,
        ) as error:  # the binding's verdict on this request
            self._refuse(entry, str(error))
            return
        if self._observer:
            self._observer.added(entry.seq_id, fields)
        self._kv.start(entry)

    def _drain_ends(self) -> None:
        for request_id, reason in self.intake.drain_ends():
            self._end(request_id, reason)

    def _end(self, request_id: str, reason: str, error: str | None = None) -> None:
        entry = self._book.of_request(request_id)
        if entry is None:
            return
        if self._waits.cancel(entry):
            self._book.close(entry)
            self._deltas.append(end_delta(entry, reason, error))
            return
        self._kv.cancel(entry)
        self.core.finish(entry.seq_id)
        self._book.close(entry)
        self._deltas.append(end_delta(entry, reason, error))
        if self._observer:
            self._observer.finished(entry.seq_id, reason)

    def _end_ignored(self) -> None:
        """Sequences the core has ended by itself; it knows them no more, so nothing is recorded."""
        for seq_id, reason in self.core.take_ignored():
            if (entry := self._book.of_seq(seq_id)) is not None:
                self._book.close(entry)
                self._deltas.append(end_delta(entry, "error", ignored_message(reason)))

    def _launch(self, plan: StepPlan) -> Step:
        step = Step(plan)
        self._counts.launched(plan)
        try:
            step.handle = self.worker.launch_forward(plan, self._starts(plan))
        except Exception as error:  # surfaces in _finish, in step order
            step.error = error
        return step

    def _starts(self, plan: StepPlan) -> list[SequenceStart]:
        starts = []
        for i, slice_index in enumerate(plan.fresh_slices.tolist()):
            entry = self._book.of_seq(int(plan.seq_ids[slice_index]))
            assert entry is not None, "the core planned a sequence that is not in the book"
            if entry.num_reported == 0:
                entry.num_cached_tokens = int(plan.fresh_cached[i])
            request = entry.request
            prompt_len = len(request.prompt_token_ids)
            starts.append(SequenceStart(entry.seq_id, prompt_len, request.sampling, request.eos_ids, entry.grammar))
        return starts

    def _launch_sample(self, step: Step) -> None:
        if step.error is None:
            try:
                self.worker.launch_sample(step.handle)
            except Exception as error:
                step.error = error

    def _finish(self, step: Step) -> None:
        try:
            if step.error is not None:
                raise step.error
            result = self.worker.collect(step.handle, self._timeout_s)
        except Exception as error:
            if not self._kv.load_failed(step.plan.step):
                self._fail(step, error)
            return
        self._drain_ends()  # an abort that came during the step must not be reported as a normal end
        if self._kv.load_failed(step.plan.step):
            return  # what this step computed rests on a load that failed; its sequences are computed anew
        self._counts.sampled_tokens += len(result.tokens)
        commit = self.core.commit(result.step, result.num_valid, result.offsets, result.tokens)
        if self._observer:
            self._observer.committed(result.step, result.num_valid, result.offsets, result.tokens)
        self._kv.save(self._book)
        self._deltas += collect_deltas(self._book, commit, result)
        if self._kv.voided(step.plan.step):
            return
        for seq_id, message in result.errors.items():
            if (entry := self._book.of_seq(seq_id)) is not None:
                self._end(entry.request.request_id, "error", message)

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
                self._end(entry.request.request_id, "error", message)

    def close(self, reason: str = "abort", error: str = "the engine was closed") -> list[TokenDelta]:
        """Ends every live request and lets the step in flight come home. Returns the last deltas.

        ``error`` is what requests are told when ``reason`` is ``error``.
        """
        self.intake.close()
        self._drain()
        for entry in self._book.entries():
            self._end(entry.request.request_id, reason, error if reason == "error" else None)
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._finish(pending)
        self._kv.close()
        self.worker.close()
        self._waits.close()
        if self._observer:
            self._observer.close()
        deltas, self._deltas = self._deltas, []
        return deltas


def add_sequence(core: Scheduler, seq_id: int, fields: dict[str, Any]) -> None:
    """Adds a sequence to the core from plain fields (also read back from a recording). Raises ValueError."""
    keys = ExtraKeys(adapter=fields.get("adapter", ""), salt=fields.get("salt", ""))
    core.add(
        seq_id,
        np.asarray(fields["prompt"], dtype=np.int32),
        max_tokens=fields["max_tokens"],
        min_tokens=fields["min_tokens"],
        eos_ids=fields["eos_ids"],
        stop_ids=fields["stop_ids"],
        ignore_eos=fields["ignore_eos"],
        reads_cache=fields["reads_cache"],
        priority=fields["priority"],
        arrival=fields["arrival"],
        keys=keys,
        outputs=fields.get("outputs", []),
        checkpoints=fields.get("checkpoints", []),
    )
