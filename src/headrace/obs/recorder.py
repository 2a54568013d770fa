"""The flight recorder: writes down every call that changes the scheduler, so that a run can be repeated.

It must never change, slow to a crawl or stop the engine it observes: when it cannot write, it says so once
and turns itself off for good. A recording holds prompts and outputs as token ids; treat the file like the
conversations.
"""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from headrace import __version__
from headrace.contract.errors import ConfigError
from headrace.contract.files import require_regular
from headrace.contract.plan import Note, StepPlan

from . import events
from .events import Event

_LOG = logging.getLogger("headrace.recorder")

FLUSH_EVENTS = 64
FLUSH_SECONDS = 1.0


class Recorder:
    """A ``StepObserver`` that writes a recording. Called by the engine's thread only."""

    def __init__(self, file: BinaryIO, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` counts seconds from any moment. Use ``open`` for a file on disk."""
        self._file: BinaryIO | None = file
        self._name = name
        self._clock = clock
        self._start = clock()
        self._encoder = msgspec.json.Encoder()
        self._unflushed = 0
        self._flushed_at = 0.0
        self._last_remarks: list[tuple[int, int, int]] | None = None
        # A process that ends without close() must not lose its last second.
        weakref.finalize(self, _close_quietly, file)

    @classmethod
    def open(
        cls,
        path: Path,
        settings: Mapping[str, Any],
        *,
        title: str = "",
        names: Mapping[int, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_time: float | None = None,
    ) -> Recorder:
        """Begins a recording at ``path``. ``settings``: the scheduler's constructor arguments.

        An older recording there is kept as ``<path>.previous``; any other file is left alone. Raises
        ConfigError.
        """
        try:
            _make_way(path)
            recorder = cls(path.open("wb"), str(path), clock)
        except OSError as error:
            raise ConfigError("record", f"{path} cannot be written: {error}") from error
        recorder._write(
            events.Config(
                format=events.FORMAT,
                headrace=__version__,
                time=time.time() if wall_time is None else wall_time,
                core=dict(settings),
                title=title,
                names=dict(names or {}),
            )
        )
        return recorder

    @property
    def on(self) -> bool:
        """Whether it still records."""
        return self._file is not None

    # -- what the engine tells --------------------------------------------------------------------------

    def added(self, seq_id: int, fields: dict[str, Any]) -> None:
        self._record(events.Added, seq_id=seq_id, **fields)

    def finished(self, seq_id: int, reason: str) -> None:
        self._record(events.Finished, seq_id=seq_id, reason=reason)

    def planned(self, plan: StepPlan) -> None:
        """An empty plan is a line only when it did something or has news: an idle engine makes many."""
        remarks = _remarks(plan) if plan.step < 0 else None
        if remarks is not None and (not remarks or remarks == self._last_remarks):
            self._flush_if_due()
            return
        numbers = {name: getattr(plan, name) for name in events.PLAN_NUMBERS + events.PLAN_INPUTS}
        arrays = {name: getattr(plan, name).tolist() for name in events.PLAN_ARRAYS}
        self._record(events.Planned, **numbers, **arrays)
        if remarks and not any(code == Note.PREEMPTED for _, code, _ in remarks):
            self._last_remarks = remarks

    def committed(self, step: int, num_valid: Any, offsets: Any, tokens: Any) -> None:
        rows = {"num_valid": num_valid, "offsets": offsets, "tokens": tokens}
        lists = {name: np.asarray(row).tolist() for name, row in rows.items()}
        self._record(events.Committed, step=step, **lists)

    def failed(self, step: int, message: str) -> None:
        self._record(events.Failed, step=step, message=message)

    def drafted(self, seq_id: int, tokens: list[int]) -> None:
        self._record(events.Drafted, seq_id=seq_id, tokens=tokens)

    def readied(self, seq_id: int, ready: bool) -> None:
        self._record(events.Readied, seq_id=seq_id, ready=ready)

    def cache_reset(self, running: bool) -> None:
        self._record(events.CacheReset, running=running)

    def forked(self, parent: int, seq_id: int, prompt: list[int], outputs: list[int]) -> None:
        self._record(events.Forked, parent=parent, seq_id=seq_id, prompt=prompt, outputs=outputs)

    def placed(self, seq_id: int, from_cache: bool = False) -> None:
        self._record(events.Placed, seq_id=seq_id, from_cache=from_cache)

    def imported(self, seq_id: int, num_tokens: int, first: int) -> None:
        self._record(events.Imported, seq_id=seq_id, num_tokens=num_tokens, first=first)

    def judged(self, seq_id: int, confidences: list[float]) -> None:
        self._record(events.Judged, seq_id=seq_id, confidences=confidences)

    def priced(self, cost: Any) -> None:
        """``cost``: the core's StepCost."""
        names = ("sizes", "times_ms", "slope_ms", "sampler_ms", "sampler_by_seqs")
        self._record(events.Priced, **{name: getattr(cost, name) for name in names})

    def close(self) -> None:
        """Writes what is left. Later calls do nothing."""
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            file.close()
        except (OSError, ValueError) as error:
            self._warn(error)

    # -- writing ----------------------------------------------------------------------------------------

    def _record(self, make: Callable[..., Event], /, **fields: Any) -> None:
        self._last_remarks = None
        self._write(lambda: make(t=round(self._clock() - self._start, 6), **fields))

    def _write(self, event: Event | Callable[[], Event]) -> None:
        if self._file is None:
            return
        try:
            line = self._encoder.encode(event() if callable(event) else event)
            self._file.write(line + b"\n")
            self._unflushed += 1
            self._flush_if_due()
        except Exception as error:  # whatever it is, the engine comes first
            self._give_up(error)

    def _flush_if_due(self) -> None:
        if self._file is None or not self._unflushed:
            return
        now = self._clock() - self._start
        if self._unflushed < FLUSH_EVENTS and now - self._flushed_at < FLUSH_SECONDS:
            return
        self._unflushed, self._flushed_at = 0, now
        try:
            self._file.flush()
        except (OSError, ValueError) as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        file, self._file = self._file, None
        if file is not None:
            _close_quietly(file)
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        _LOG.warning("the flight recorder stops: %s: %s: %s", self._name, type(error).__name__, error)


def _remarks(plan: StepPlan) -> list[tuple[int, int, int]]:
    return list(zip(plan.note_seqs.tolist(), plan.note_codes.tolist(), plan.note_values.tolist()))


def _close_quietly(file: BinaryIO) -> None:
    with contextlib.suppress(OSError, ValueError):
        file.close()


def _make_way(path: Path) -> None:
    """Keeps an older recording; refuses to write over anything else, or into a pipe, which would block."""
    if not path.exists() or path.is_char_device():  # the null device takes what it is given and keeps nothing
        return
    require_regular(path)
    if path.stat().st_size == 0:
        return
    with path.open("rb") as file:
        head = file.read(256)
    if not head.startswith(b'{"event":"config"'):
        raise ConfigError("record", f"{path} exists and is not a recording; name another file or remove it")
    path.replace(path.with_name(path.name + ".previous"))
