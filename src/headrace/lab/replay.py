"""Replay: the recorded calls, made again to a fresh scheduler; every plan must come out the same.

The scheduler is a pure function of its calls, so a difference means that the file was changed, or that this
version plans otherwise than the one that recorded. No worker and no model take part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from headrace._core import Scheduler, StepCost
from headrace.contract.errors import RecordingError
from headrace.engine.admission import add_sequence
from headrace.obs import events
from headrace.obs.events import Body
from headrace.obs.recording import Recording


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where replay and recording part. ``step`` is -1 outside of steps.

    ``field``: the array's (or number's) name, or ``call`` when the scheduler refused what was recorded.
    """

    line: int
    step: int
    field: str
    expected: Any
    got: Any

    def __str__(self) -> str:
        where = f"line {self.line}" + (f", step {self.step}" if self.step >= 0 else "")
        return f"{where}: {self.field}: recorded {_short(self.expected)}, replayed {_short(self.got)}"


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """``num_steps`` steps were planned again; ``difference`` is None when all of them agree."""

    num_steps: int
    difference: Difference | None

    @property
    def ok(self) -> bool:
        return self.difference is None


class Player:
    """Makes recorded calls to ``core``, one by one, so that one can look at it between calls."""

    def __init__(self, recording: Recording) -> None:
        """Raises RecordingError when no scheduler can be built from the recorded settings."""
        self.recording = recording
        try:
            self.core = Scheduler(**recording.config.core)
        except (TypeError, ValueError) as error:
            reason = str(error).split("\n")[0]
            raise RecordingError(recording.path, 1, f"core: no scheduler can be built: {reason}") from error

    def play(self, index: int) -> tuple[Any, Difference | None]:
        """Makes call ``index``; returns what came of it, and how that differs from the recording."""
        event = self.recording.events[index]
        line = self.recording.line(index)
        try:
            result = self._call(event)
        except (ValueError, TypeError, OverflowError, RuntimeError) as error:
            return None, Difference(line, getattr(event, "step", -1), "call", _describe(event), str(error))
        if isinstance(event, events.Planned):
            return result, _compare(line, event, result)
        return result, None

    def _call(self, event: Body) -> Any:
        core = self.core
        match event:
            case events.Planned():
                companion = event.step >= 0 and not event.seq_ids
                plan = core.plan(event.kind, time_budget_ns=event.time_budget_ns, companion=companion)
                core.take_ignored()  # as the engine does; until then they would be noted again
                return plan
            case events.Committed():
                rows = (event.num_valid, event.offsets, event.tokens)
                return core.commit(event.step, *(np.asarray(row, dtype=np.int32) for row in rows))
            case events.Added():
                return add_sequence(core, event.seq_id, msgspec.structs.asdict(event))
            case events.Finished():
                return core.finish(event.seq_id)
            case events.Failed():
                return core.fail(event.step)
            case events.Drafted():
                return core.set_drafts(event.seq_id, event.tokens)
            case events.Readied():
                return core.set_ready(event.seq_id, event.ready)
            case events.CacheReset():
                return core.reset_prefix_cache(event.running)
            case events.Forked():
                prompt = np.asarray(event.prompt, dtype=np.int32)
                return core.fork(event.parent, event.seq_id, prompt, event.outputs)
            case events.Placed():
                return core.place(event.seq_id, event.from_cache)
            case events.Imported():
                return core.import_prefix(event.seq_id, event.num_tokens, event.first)
            case events.Judged():
                return core.set_confidences(event.seq_id, event.confidences)
            case events.Priced():
                fields = msgspec.structs.asdict(event)
                del fields["t"]
                return core.set_cost(StepCost(**fields))


def replay(recording: Recording) -> ReplayReport:
    """Replays up to the first difference. Raises RecordingError when the settings do not make a scheduler."""
    player = Player(recording)
    num_steps = 0
    for index, event in enumerate(recording.events):
        _, difference = player.play(index)
        if difference is not None:
            return ReplayReport(num_steps, difference)
        num_steps += isinstance(event, events.Planned) and event.step >= 0
    return ReplayReport(num_steps, None)


def _compare(line: int, expected: events.Planned, got: Any) -> Difference | None:
    for name in events.PLAN_ARRAYS:
        recorded, replayed = getattr(expected, name), getattr(got, name).tolist()
        if recorded != replayed:
            return Difference(line, expected.step, name, recorded, replayed)
    for name in events.PLAN_NUMBERS:
        if getattr(expected, name) != getattr(got, name):
            return Difference(line, expected.step, name, getattr(expected, name), getattr(got, name))
    return None


def _describe(event: Body) -> str:
    name = type(event).__struct_config__.tag
    seq_id = getattr(event, "seq_id", None)
    return f"{name} of sequence {seq_id}" if seq_id is not None else f"{name} of step {getattr(event, 'step', -1)}"


def _short(value: Any, limit: int = 160) -> str:
    text = str(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
