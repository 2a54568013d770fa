"""A recording read back: checked line by line, so that whoever uses it can trust shapes and order.

A last line that was cut off (the process was killed) is left out and reported; anything else wrong is an
error that names the line. It never repairs or guesses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.contract.errors import RecordingError
from headrace.contract.plan import Clip, Note

from .events import FORMAT, Added, Body, Committed, Config, Failed, Finished, Forked, Planned

_NOTES = frozenset(int(note) for note in Note)
_CLIPS = frozenset(int(clip) for clip in Clip)


@dataclass(frozen=True, slots=True)
class Recording:
    """``events[i]`` stands on line ``i + 2`` of ``path``. ``truncated``: a last line was cut off."""

    path: str
    config: Config
    events: tuple[Body, ...]
    truncated: bool = False

    @property
    def num_steps(self) -> int:
        return sum(isinstance(event, Planned) and event.step >= 0 for event in self.events)

    @property
    def num_groups(self) -> int:
        """KV groups: the rows per slice in block arrays."""
        return len(self.config.core.get("groups", [None]))

    def line(self, index: int) -> int:
        """The line of ``events[index]``."""
        return index + 2

    def name(self, seq_id: int) -> str:
        """What to call a sequence: its given name, else #number."""
        return self.config.names.get(seq_id, f"#{seq_id}")


def read_recording(path: Path) -> Recording:
    """Reads and checks a recording. Raises RecordingError naming file and line."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RecordingError(str(path), 0, f"cannot be read: {error}") from error
    truncated = lines[-1] != b""
    config = _read_config(str(path), lines[0])
    checker = _Checker(str(path), len(config.core.get("groups", [None])))
    decoder = msgspec.json.Decoder(Body)
    events: list[Body] = []
    for number, line in enumerate(lines[1:] if truncated else lines[1:-1], start=2):
        try:
            event = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if truncated and number == len(lines):
                return Recording(str(path), config, tuple(events), truncated=True)
            raise RecordingError(str(path), number, str(error)) from error
        checker.check(number, event)
        events.append(event)
    return Recording(str(path), config, tuple(events))


def _read_config(path: str, line: bytes) -> Config:
    try:
        head = msgspec.json.decode(line)
        if not isinstance(head, dict) or "format" not in head:
            raise RecordingError(path, 1, "not a flight recording: its first line does not say `format`")
        if head["format"] != FORMAT:
            raise RecordingError(path, 1, f"format {head['format']!r} is not known, only {FORMAT}")
        config = msgspec.json.decode(line, type=Config)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordingError(path, 1, f"not a flight recording: {error}") from error
    if not isinstance(config.core.get("groups", [None]), list):
        raise RecordingError(path, 1, "core.groups must be a list of (kind, window) pairs")
    return config


@dataclass
class _Checker:
    """What the order of lines must keep to. Steps in flight are few, so a list will do."""

    path: str
    num_groups: int
    next_step: int = 0
    in_flight: list[tuple[int, int]] = field(default_factory=list)
    known: set[int] = field(default_factory=set)

    def check(self, line: int, event: Body) -> None:
        try:
            if isinstance(event, Planned):
                self._plan(event)
            elif isinstance(event, Committed):
                self._commit(event)
            elif isinstance(event, Failed):
                self._returned(event.step)
            elif isinstance(event, Added | Forked):
                _require(event.seq_id not in self.known, f"sequence {event.seq_id} was added before")
                self.known.add(event.seq_id)
            elif isinstance(event, Finished):
                _require(event.seq_id in self.known, f"sequence {event.seq_id} was never added")
        except ValueError as error:
            raise RecordingError(self.path, line, str(error)) from None

    def _plan(self, event: Planned) -> None:
        slices, rows = len(event.seq_ids), len(event.seq_ids) * self.num_groups
        for name in ("num_scheduled", "num_computed", "num_tokens", "num_drafts", "samples", "clips"):
            _require_length(event, name, slices)
        _require_length(event, "fresh_cached", len(event.fresh_slices))
        _require_length(event, "block_starts", rows)
        _require_cuts(event.fresh_offsets, len(event.fresh_slices), len(event.fresh_tokens), "fresh_offsets")
        _require_cuts(event.block_offsets, rows, len(event.block_ids), "block_offsets")
        _require_length(event, "note_seqs", len(event.note_codes))
        _require_length(event, "note_values", len(event.note_codes))
        _require(set(event.note_codes) <= _NOTES, "note_codes holds an unknown code")
        _require(set(event.clips) <= _CLIPS, "clips holds an unknown reason")
        if event.step < 0:
            _require(slices == 0, "an empty plan (step -1) has slices")
            return
        _require(event.step == self.next_step, f"step {event.step} where {self.next_step} was due")
        self.next_step += 1
        self.in_flight.append((event.step, slices))

    def _commit(self, event: Committed) -> None:
        slices = self._returned(event.step)
        _require_length(event, "num_valid", slices)
        _require_cuts(event.offsets, slices, len(event.tokens), "offsets")

    def _returned(self, step: int) -> int:
        due = self.in_flight[0][0] if self.in_flight else None
        _require(step == due, f"the result of step {step} where {'none' if due is None else due} was due")
        return self.in_flight.pop(0)[1]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _require_length(event: Planned | Committed, name: str, count: int) -> None:
    got = len(getattr(event, name))
    _require(got == count, f"{name} has {got} entries, {count} are due")


def _require_cuts(offsets: list[int], rows: int, total: int, name: str) -> None:
    """Offsets rise from 0 to ``total``, one more than there are rows."""
    fits = len(offsets) == rows + 1 and offsets[0] == 0 and offsets[-1] == total and offsets == sorted(offsets)
    _require(fits, f"{name} does not cut {total} entries into {rows} rows")
