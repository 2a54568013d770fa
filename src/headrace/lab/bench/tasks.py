"""What contenders are compared on. A task asks a runner once and turns the answer into figures, one per line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from headrace.contract.errors import ConfigError

from .peer_process import PeerProcess
from .workload import DECODE_DEPTHS, DECODE_TOKENS, OFFLINE, PREFIX, Batch, draw_prompt, draw_prompts

STEP_ROWS = (1, 2, 4, 8, 16)
STEP_DEPTH = 32
NUM_STEPS = 16
LONG = 1000
"""Prompts longer than this have the time to their first token as a line of its own."""


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the table; ``more_is_better`` tells who is ahead."""

    name: str
    unit: str
    more_is_better: bool = True


@dataclass(frozen=True, slots=True)
class Task:
    """``run(process, turn)`` gives one figure per line."""

    lines: tuple[Line, ...]
    run: Callable[[PeerProcess, int], tuple[float, ...]]

    @property
    def name(self) -> str:
        return self.lines[0].name


def prefill(length: int, deadline_s: float) -> Task:
    def run(process: PeerProcess, turn: int) -> tuple[float, ...]:
        prompts = [draw_prompt(length, f"peers prefill {length} {turn}")]
        return (length / float(_generate(process, deadline_s, prompts, 1)["total_s"]),)

    return Task((Line(f"prefill, {length} tokens", "tok/s"),), run)


def decode(depth: int, num_tokens: int, deadline_s: float) -> Task:
    """One stream. Of a long prompt the time to the first token is a line too."""
    lines: tuple[Line, ...] = (Line(f"decode, one stream, {num_tokens} tokens at depth {depth}", "tok/s"),)
    long = depth > LONG
    if long:
        lines = (Line(f"prefill, {depth} tokens", "tok/s"), *lines)

    def run(process: PeerProcess, turn: int) -> tuple[float, ...]:
        prompts = [draw_prompt(depth, f"peers decode {depth} {turn}")]
        answer = _generate(process, deadline_s, prompts, num_tokens + 1)
        rate = num_tokens / float(answer["total_s"] - answer["first_s"])
        return (depth / float(answer["first_s"]), rate) if long else (rate,)

    return Task(lines, run)


def batch(what: str, work: Batch, deadline_s: float) -> Task:
    def run(process: PeerProcess, turn: int) -> tuple[float, ...]:
        answer = _generate(process, deadline_s, work.prompts(turn), work.max_tokens)
        return (work.num_output / float(answer["total_s"]),)

    return Task((Line(what, "output tok/s"),), run)


def step(rows: int, deadline_s: float) -> Task:
    def run(process: PeerProcess, turn: int) -> tuple[float, ...]:
        prompts = draw_prompts(rows, STEP_DEPTH, f"peers step {rows} {turn}")
        seconds: list[float] = process.ask("steps", deadline_s, prompts=prompts, num_steps=NUM_STEPS)["seconds"]
        return (1e3 * median(seconds),)

    return Task((Line(f"one decode step, {rows} rows", "ms", more_is_better=False),), run)


def _generate(process: PeerProcess, deadline_s: float, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
    answer = process.ask("generate", deadline_s, prompts=prompts, max_tokens=max_tokens)
    if answer["num_output"] != len(prompts) * max_tokens:
        raise ValueError(f"{answer['num_output']} tokens came instead of {len(prompts) * max_tokens}")
    return answer


def all_tasks(deadline_s: float, small: bool = False) -> Sequence[Task]:
    """The table's rows. ``small`` has the same rows with little work: it shows that all runs, not how fast."""
    if small:
        return (
            prefill(32, deadline_s),
            decode(16, 4, deadline_s),
            batch("offline, 3 x (8 in, 4 out)", Batch(3, 8, 4), deadline_s),
            batch("shared 32 + 3 x 8, 4 out", Batch(3, 8, 4, 32), deadline_s),
            step(2, deadline_s),
        )
    shared = f"{PREFIX.count} sharing {PREFIX.shared}, {PREFIX.length} own, {PREFIX.max_tokens} out"
    return (
        prefill(512, deadline_s),
        *(decode(depth, DECODE_TOKENS if depth <= LONG else DECODE_TOKENS // 2, deadline_s) for depth in DECODE_DEPTHS),
        batch(f"offline, {OFFLINE.count} x ({OFFLINE.length} in, {OFFLINE.max_tokens} out)", OFFLINE, deadline_s),
        batch(shared, PREFIX, deadline_s),
        *(step(rows, deadline_s) for rows in STEP_ROWS),
    )


def chosen_tasks(tasks: Sequence[Task], wanted: str | None) -> Sequence[Task]:
    """Tasks with one of the comma-separated texts in a line's name; all for None. Raises ConfigError for no match."""
    if wanted is None:
        return tasks
    texts = [text.strip().lower() for text in wanted.split(",")]
    lines = {task.name: " ".join(line.name.lower() for line in task.lines) for task in tasks}
    for text in texts:
        if not any(text in each for each in lines.values()):
            raise ConfigError("tasks", f"no task has {text!r} in its name: {'; '.join(lines)}")
    return tuple(task for task in tasks if any(text in lines[task.name] for text in texts))
