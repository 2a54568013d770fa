"""Side by side: every contender does every task in turn, A B A B ..., on the same machine within the same minutes.

While one works the others are stopped. What a contender cannot do, or fails at, is said in its place; it ends nothing
else. Accuracy is measured on the same windows of the same text for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from time import monotonic
from typing import Any

from .contenders import Contender
from .machine import machine_facts
from .peer_process import PeerError, PeerProcess
from .perplexity import perplexity
from .stats import Spread, spread
from .tasks import Line, Task

Tell = Callable[[str], None]
Start = Callable[[Contender], PeerProcess]

FIRST_PROMPT = [504, 3575, 282]
PEAK_MEMORY = Line("peak memory, after all of this", "MiB", more_is_better=False)
FIRST_MEMORY = Line("peak memory at the first token", "MiB", more_is_better=False)
SLOW_START_S = 60.0
SLOW_S, SLOW_ROUNDS = 15.0, 2
START = Line("process start to first token", "s", more_is_better=False)
PERPLEXITY = Line("perplexity", "", more_is_better=False)


@dataclass(frozen=True, slots=True)
class Cell:
    """A contender's result at one task: a figure, or why there is none."""

    value: Spread | None
    why_not: str = ""


@dataclass(slots=True)
class Comparison:
    """``cells`` by line and contender name; ``units`` and ``more_is_better`` by line; every contender had
    ``threads``."""

    machine: dict[str, Any]
    threads: int
    versions: dict[str, str] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    more_is_better: dict[str, bool] = field(default_factory=dict)
    cells: dict[str, dict[str, Cell]] = field(default_factory=dict)

    def put(self, line: Line, contender: str, cell: Cell) -> None:
        self.units[line.name], self.more_is_better[line.name] = line.unit, line.more_is_better
        self.cells.setdefault(line.name, {})[contender] = cell

    def plain(self) -> dict[str, Any]:
        return {"bench": "peers", **asdict(self)}


@dataclass(slots=True)
class Seat:
    """A contender at the table: its process while it lives, and why it left when it does not."""

    contender: Contender
    process: PeerProcess | None = None
    why_gone: str = ""

    def leave(self, reason: str) -> None:
        self.why_gone = reason
        if self.process is not None:
            self.process.close()
            self.process = None


@dataclass(frozen=True, slots=True)
class Plan:
    """``load``: arguments every runner gets besides its file; ``windows``: token windows for perplexity."""

    tasks: Sequence[Task]
    windows: Sequence[list[int]]
    threads: int
    rounds: int
    load_deadline_s: float
    run_deadline_s: float


def compare(
    contenders: Sequence[Contender],
    plan: Plan,
    start: Start,
    file_of: Callable[[Contender], str],
    tell: Tell,
    keep: Callable[[Comparison], None] = lambda _: None,
) -> Comparison:
    """Starts all, measures all, ends all. ``start`` and ``file_of`` may raise PeerError: that contender stays away.

    ``keep`` gets what there is after each task, so that an interrupted hour is not lost.
    """
    result = Comparison(machine_facts(), plan.threads)
    seats = [Seat(contender) for contender in contenders]
    try:
        for seat in seats:
            tell(f"starting {seat.contender.name}")
            _sit_down(seat, plan, start, file_of, result)
        for task in plan.tasks:
            tell(task.name)
            _play(task, seats, plan.rounds, result)
            keep(result)
        tell("peak memory, perplexity")
        for seat in seats:
            _settle(seat, plan, result)
    finally:
        for seat in seats:
            seat.leave(seat.why_gone or "ended")
    return result


def _sit_down(seat: Seat, plan: Plan, start: Start, file_of: Callable[[Contender], str], result: Comparison) -> None:
    """Starts, loads and draws a first token. Twice, so that the second start finds its files in memory; once for those
    to whom a minute or more shows that files are not what they wait for."""
    contender = seat.contender
    try:
        for _ in range(2):
            seat.leave("")
            model = file_of(contender)
            process = seat.process = start(contender)
            answer = process.ask("load", plan.load_deadline_s, model=model, threads=plan.threads, **contender.options)
            process.ask("generate", plan.run_deadline_s, prompts=[FIRST_PROMPT], max_tokens=1)
            seconds = monotonic() - process.started
            if seconds > SLOW_START_S:
                break
    except PeerError as error:
        for line in (START, FIRST_MEMORY):
            result.put(line, contender.name, Cell(None, str(error)))
        seat.leave(str(error))
        return
    result.versions[contender.name] = f"{answer['version']} ({answer['detail']})"
    result.put(START, contender.name, Cell(spread([seconds])))
    result.put(FIRST_MEMORY, contender.name, Cell(spread([process.peak_rss_bytes / (1 << 20)])))
    process.pause()


def _play(task: Task, seats: Sequence[Seat], rounds: int, result: Comparison) -> None:
    """In each round every contender once. The first round warms up and is not counted, but for those whom it takes
    longer than ``SLOW_S``: to them starting is nothing, and two rounds are enough."""
    values: dict[str, list[tuple[float, ...]]] = {seat.contender.name: [] for seat in seats}
    slow: set[str] = set()
    failed: dict[str, str] = {}
    for turn in range(-1, rounds):
        for seat in seats:
            name = seat.contender.name
            if name in failed or seat.process is None or (name in slow and len(values[name]) >= SLOW_ROUNDS):
                continue
            begun = monotonic()
            figures = _attempt(seat, partial(_play_once, task, turn), failed)
            if monotonic() - begun > SLOW_S:
                slow.add(name)
            if figures is not None and (turn >= 0 or name in slow):
                values[name].append(figures)
    for seat in seats:
        name = seat.contender.name
        why = failed.get(name) or seat.why_gone
        for i, line in enumerate(task.lines):
            result.put(line, name, Cell(None, why) if why else Cell(spread([each[i] for each in values[name]])))


def _play_once(task: Task, turn: int, process: PeerProcess) -> tuple[float, ...]:
    return task.run(process, turn)


def _attempt(seat: Seat, run: Callable[[PeerProcess], Any], failed: dict[str, str]) -> Any:
    """``run`` with this contender awake. A failure is noted; if the process died of it, the contender leaves."""
    assert seat.process is not None
    seat.process.resume()
    try:
        return run(seat.process)
    except (PeerError, KeyError, ValueError, ZeroDivisionError) as error:
        failed[seat.contender.name] = str(error)
        return None
    finally:
        if seat.process.alive:
            seat.process.pause()
        else:
            seat.leave(failed.get(seat.contender.name, "the process ended"))


def _settle(seat: Seat, plan: Plan, result: Comparison) -> None:
    """Peak memory before the scoring, which keeps logits of every row that serving would not."""
    name = seat.contender.name
    if seat.process is None:
        for line in (PEAK_MEMORY, PERPLEXITY):
            result.put(line, name, Cell(None, seat.why_gone))
        return
    result.put(PEAK_MEMORY, name, Cell(spread([seat.process.peak_rss_bytes / (1 << 20)])))
    if not plan.windows:
        return
    failed: dict[str, str] = {}
    answer = _attempt(seat, lambda p: p.ask("score", plan.run_deadline_s, windows=list(plan.windows)), failed)
    if answer is None:
        result.put(PERPLEXITY, name, Cell(None, failed[name]))
        return
    num_predicted = sum(len(ids) - 1 for ids in plan.windows)
    result.put(PERPLEXITY, name, Cell(spread([perplexity(answer["sums"], num_predicted)])))
