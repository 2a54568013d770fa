"""A timeline for Perfetto or chrome://tracing, from a recording alone: the trace-event JSON format.

Steps are asynchronous spans from plan to result, since with overlap two are open at once. On a sequence's
own track a slice begins when the step before it was done: the device runs one step at a time.
"""

from __future__ import annotations

from typing import Any

from headrace.contract.errors import RecordingError

from .events import Added, Committed, Failed, Finished, Planned
from .recording import Recording

MAX_SECONDS = 1e10  # three centuries
_ENGINE, _SEQUENCES = 1, 2  # process ids, which only group tracks

Trace = dict[str, Any]


def perfetto(recording: Recording) -> Trace:
    """The trace as a JSON-ready object. Times are microseconds since the recording began.

    Raises RecordingError for a time that none can be: its microseconds might be infinite, for which JSON has no word.
    """
    rows: list[Trace] = [
        {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}
        for pid, name in ((_ENGINE, "engine"), (_SEQUENCES, "sequences"))
    ]
    flights: dict[int, Planned] = {}
    device_free = 0.0
    for index, event in enumerate(recording.events):
        if not abs(event.t) <= MAX_SECONDS:
            raise RecordingError(recording.path, recording.line(index), f"t: {event.t!r} is no time of a recording")
        now = _micros(event.t)
        match event:
            case Planned():
                rows += _counters(event, now)
                if event.step >= 0:
                    flights[event.step] = event
                    rows.append(_step_edge("b", event.step, now, {"tokens": sum(event.num_scheduled)}))
            case Committed() | Failed():
                plan = flights.pop(event.step)
                rows.append(_step_edge("e", event.step, now, _result(event)))
                start = max(device_free, _micros(plan.t))
                rows += _slices(plan, start, now - start, failed=isinstance(event, Failed))
                device_free = now
            case Added():
                name = recording.name(event.seq_id)
                rows.append(_track_name(event.seq_id, name))
                rows.append(_instant(event.seq_id, now, f"added, prompt of {len(event.prompt)}"))
            case Finished():
                rows.append(_instant(event.seq_id, now, f"ended: {event.reason}"))
    return {
        "traceEvents": rows,
        "displayTimeUnit": "ms",
        "otherData": {"headrace": recording.config.headrace},
    }


def _micros(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _counters(plan: Planned, now: float) -> list[Trace]:
    counters = {
        "sequences": {"running": plan.num_running, "waiting": plan.num_waiting},
        "free blocks": {"blocks": plan.num_free_blocks},
        "scheduled tokens": {"tokens": sum(plan.num_scheduled)},
    }
    return [{"name": n, "ph": "C", "pid": _ENGINE, "ts": now, "args": args} for n, args in counters.items()]


def _step_edge(phase: str, step: int, now: float, args: Trace) -> Trace:
    span = {"name": f"step {step}", "cat": "step", "ph": phase, "id": step, "pid": _ENGINE, "tid": 0}
    return {**span, "ts": now, "args": args}


def _result(event: Committed | Failed) -> Trace:
    return {"failed": event.message} if isinstance(event, Failed) else {"emitted": len(event.tokens)}


def _slices(plan: Planned, start: float, duration: float, *, failed: bool) -> list[Trace]:
    rows = []
    for i, seq_id in enumerate(plan.seq_ids):
        q, drafts = plan.num_scheduled[i], plan.num_drafts[i]
        what = "verify" if drafts else "decode" if q == 1 and plan.samples[i] else "prefill"
        args = {"step": plan.step, "tokens": q, "drafts": drafts, "first_position": plan.num_computed[i]}
        name = f"{what} {q}" + (" (failed)" if failed else "")
        span = {"name": name, "cat": what, "ph": "X", "pid": _SEQUENCES, "tid": seq_id, "ts": start}
        rows.append({**span, "dur": max(duration, 0.0), "args": args})
    return rows


def _track_name(seq_id: int, name: str) -> Trace:
    return {"name": "thread_name", "ph": "M", "pid": _SEQUENCES, "tid": seq_id, "args": {"name": name}}


def _instant(seq_id: int, now: float, name: str) -> Trace:
    return {"name": name, "ph": "i", "s": "t", "pid": _SEQUENCES, "tid": seq_id, "ts": now, "args": {}}
