"""The batch itself: lines into the engine as it has room, records out as they finish.

There are no waves: a window of open requests, twice what the engine runs at once, is topped up after every step. A
failure of the engine is no answer: its lines get no record, so that a later run takes them again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.contract.errors import InvalidRequest, QueueFull
from headrace.contract.request import SamplingParams

from ..interrupts import Interrupts
from ..records import completion
from . import wishes
from .journal import Done, Journal
from .lines import Line

if TYPE_CHECKING:
    from headrace.api.llm import LLM
    from headrace.api.output import RequestOutput
    from headrace.api.prompts import Prepared


@dataclass(slots=True)
class Tally:
    """What has happened so far. ``num_failed`` of the lines were not answered; of them ``num_unfiled`` have no record,
    the engine's failure being why (``first_failure``). ``num_input_bytes`` counts lines that are settled, for progress.
    """

    num_completed: int = 0
    num_failed: int = 0
    num_unfiled: int = 0
    first_failure: str = ""
    num_skipped: int = 0
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    num_input_bytes: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        return self.num_completion_tokens / self.seconds if self.seconds > 0 else 0.0

    def report(self) -> dict[str, Any]:
        return {
            "completed": self.num_completed,
            "failed": self.num_failed,
            "unfiled": self.num_unfiled,
            "skipped": self.num_skipped,
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_completion_tokens,
            "seconds": self.seconds,
            "tokens_per_s": self.tokens_per_s,
        }


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request came from."""

    line: int
    given: wishes.LineId
    num_bytes: int


class Batch:
    """One run over an input. ``window`` bounds the open sequences, and with them the memory."""

    def __init__(self, llm: LLM, journal: Journal, defaults: SamplingParams, window: int) -> None:
        self._llm = llm
        self._journal = journal
        self._defaults = defaults
        self._window = window
        self._open: dict[str, Place] = {}
        self._seen = Done()
        self.tally = Tally()

    def run(self, lines: Iterable[Line], interrupts: Interrupts, on_turn: Callable[[Tally], None]) -> None:
        """Until the input or the patience ends. Open requests are then given up; a later run takes them again."""
        start = time.monotonic()
        turns = self._llm.feed(self._prepared(lines, interrupts), window=self._window)
        try:
            for news in turns:
                for output in news:
                    if output.finished:
                        self._settle(output)
                self.tally.seconds = time.monotonic() - start
                on_turn(self.tally)
                if interrupts.asked:
                    return
        finally:
            turns.close()  # type: ignore[attr-defined]
            self.tally.seconds = time.monotonic() - start

    def _prepared(self, lines: Iterable[Line], interrupts: Interrupts) -> Iterator[Prepared]:
        """The lines that are still to do and can be done."""
        for line in lines:
            if interrupts.asked:
                return
            prepared = self._open_line(line)
            if prepared is not None:
                yield prepared

    def _open_line(self, line: Line) -> Prepared | None:
        """None when the line is done already, or bad; then its error has been written."""
        given: wishes.LineId = None
        try:
            wish = wishes.decode(line)
            given = self._read_id(wish, line)
            if self._journal.done.has(line.number, given):
                self._skip(line)
                return None
            prepared = wishes.prepare(self._llm, wish, self._defaults)
        except Exception as error:  # whatever a line holds, it must not cost the others
            self._refuse(Place(line.number, given, line.num_bytes), line, error)
            return None
        self._open[prepared.request_id] = Place(line.number, given, line.num_bytes)
        return prepared

    def _read_id(self, wish: dict[str, Any], line: Line) -> wishes.LineId:
        """The line's id. One that came before is an error of this line alone, filed under its number."""
        given = wishes.read_id(wish)
        if given is not None:
            if self._seen.has(line.number, given):
                raise InvalidRequest("id", f"{given!r} is also the id of an earlier line")
            self._seen.add(line.number, given)
        return given

    def _skip(self, line: Line) -> None:
        self.tally.num_skipped += 1
        self.tally.num_input_bytes += line.num_bytes

    def _refuse(self, place: Place, line: Line, error: Exception) -> None:
        """Writes a bad line's error, unless an earlier run did."""
        if self._journal.done.has(place.line, place.given):
            self._skip(line)
            return
        field = getattr(error, "field", None)
        message = str(error) if field is None else str(error).removeprefix(f"{field}: ")
        if not isinstance(error, InvalidRequest):
            message = f"{type(error).__name__}: {message}"
        self._write_error(place, field, message)

    def _write_error(self, place: Place, field: str | None, message: str) -> None:
        self._journal.write(place.line, place.given, {"error": {"field": field, "message": message}})
        self._count_failed(place)

    def _count_failed(self, place: Place) -> None:
        self.tally.num_failed += 1
        self.tally.num_input_bytes += place.num_bytes

    def _settle(self, output: RequestOutput) -> None:
        place = self._open.pop(output.request_id)
        failed = [choice for choice in output.outputs if choice.finish_reason in ("error", "abort")]
        own = next((choice for choice in failed if choice.error_field is not None), None)
        if own is not None and own.error_field != QueueFull.FIELD:
            self._write_error(place, own.error_field, (own.error or "").removeprefix(f"{own.error_field}: "))
            return
        if failed:
            self.tally.num_unfiled += 1
            self.tally.first_failure = self.tally.first_failure or failed[0].error or "the engine was closed"
            self._count_failed(place)
            return
        record = completion(output)
        self._journal.write(place.line, place.given, record)
        self.tally.num_completed += 1
        self.tally.num_prompt_tokens += record["usage"]["prompt_tokens"]
        self.tally.num_completion_tokens += record["usage"]["completion_tokens"]
        self.tally.num_input_bytes += place.num_bytes
