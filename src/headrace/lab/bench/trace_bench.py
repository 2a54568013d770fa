"""Disciplines beside one another on the same trace: throughput, time to first token, time between tokens.

Every run starts its engines anew, in turns (A B, A B), so that none inherits a cache or a busy moment of the machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.api.connect import Connected, connect
from headrace.config import EngineConfig
from headrace.contract.errors import ConfigError

from .engine_runs import without_store
from .engine_settings import engine_settings
from .progress import now
from .report import Curve, Report
from .stats import spread
from .trace_drive import Drive, Times
from .trace_file import Arrival, read_trace, scaled

PERCENTILES = (50, 95, 99)
CURVE = (5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99)
DISCIPLINES = ("mixed", "voted", "split")
WARM_UP = Arrival(0.0, 16, 4)


@dataclass(frozen=True, slots=True)
class TraceWork:
    """Which part of a trace, how scaled, and how long all of it may take after the last arrival."""

    path: Path
    requests: int = 100
    skip: int = 0
    time_scale: float = 1.0
    length_scale: float = 1.0
    longest: int = 2048
    deadline_s: float = 1800.0

    def arrivals(self) -> list[Arrival]:
        return scaled(read_trace(self.path, self.requests, self.skip), self.time_scale, self.length_scale, self.longest)


def bench_trace(
    config: EngineConfig, work: TraceWork, disciplines: Sequence[str], ranks: int, rounds: int = 1
) -> Report:
    """Raises ConfigError for a trace or a discipline that cannot be run, HeadraceError when a request fails."""
    arrivals = work.arrivals()
    settings = dataclasses.asdict(work) | {"path": work.path.name, "ranks": ranks, "rounds": rounds}
    report = Report("trace", settings | engine_settings(config))
    report.settings["prompt_tokens"] = sum(arrival.prompt for arrival in arrivals)
    report.settings["output_tokens"] = sum(arrival.output for arrival in arrivals)
    configs = {name: contender(without_store(config), name, ranks) for name in disciplines}
    runs: dict[str, list[Times]] = {name: [] for name in disciplines}
    votes: dict[str, str] = {}
    for number in range(rounds):
        for name, own in configs.items():
            now(f"{name}, round {number + 1} of {rounds}")
            connected = connect(own, own_process=True)
            try:
                runs[name].append(_run(connected, arrivals, ranks, f"{number}", work))
                votes[name] = _votes(connected)
            finally:
                connected.client.close()
    for name in disciplines:
        _tell(report, name, runs[name], votes[name])
    return report.finish()


def parse_disciplines(text: str) -> list[str]:
    """Names separated by commas. Raises ConfigError for one that is none, or comes twice."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in DISCIPLINES:
            raise ConfigError("disciplines", f"must be of {', '.join(DISCIPLINES)}, not {name!r}")
        if names.count(name) > 1:
            raise ConfigError("disciplines", f"{name} is named twice; --rounds runs each several times")
    return names


def require_fits(arrivals: Sequence[Arrival], most: int) -> None:
    """Raises ConfigError when a sequence is longer than ``most`` tokens."""
    longest = max(arrival.prompt + arrival.output for arrival in arrivals)
    if longest > most:
        reason = f"the trace has sequences of {longest} tokens, an engine here holds {most}"
        raise ConfigError("longest", f"{reason}; use at most {most}")


def contender(config: EngineConfig, discipline: str, ranks: int) -> EngineConfig:
    """The configuration with this discipline on so many ranks; split always is two engines, each in its process."""
    return dataclasses.replace(
        config,
        scheduler=dataclasses.replace(config.scheduler, discipline=discipline),
        group=dataclasses.replace(config.group, data_parallel_size=1 if discipline == "split" else ranks),
    )


def _run(connected: Connected, arrivals: Sequence[Arrival], ranks: int, name: str, work: TraceWork) -> Times:
    require_fits(arrivals, connected.facts["max_model_len"])
    Drive(connected.client, [WARM_UP] * 2 * ranks, f"warm-up {name}").run(work.deadline_s)
    return Drive(connected.client, arrivals, name).run(work.deadline_s)


def _votes(connected: Connected) -> str:
    stats = connected.client.stats
    if not stats.votes:
        return ""
    counts = ", ".join(f"{count} {outcome}" for outcome, count in stats.votes.items())
    return f"votes of all ranks: {counts}; {stats.vote_wait_s:.1f} s in them"


def percentile(values: Sequence[float], percent: float) -> float:
    """The least value that at least ``percent`` of all do not exceed. Raises ValueError when there is none."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("a percentile needs at least one value")
    return ordered[max(0, -int(-len(ordered) * percent // 100) - 1)]


def _tell(report: Report, name: str, runs: Sequence[Times], note: str) -> None:
    rates = [run.num_output / run.total_s for run in runs]
    report.add(f"{name}: throughput", "output tok/s", spread(rates), note=note)
    for what, part in (("time to first token", "first"), ("between tokens", "gaps"), ("whole request", "whole")):
        values = [getattr(run, part) for run in runs]
        if not all(values):
            continue  # no request had a second token
        for percent in PERCENTILES:
            found = spread([percentile(each, percent) * 1000 for each in values])
            report.add(f"{name}: {what}, p{percent}", "ms", found)
        pooled = [value for each in values for value in each]
        points = [(float(p), percentile(pooled, p) * 1000) for p in CURVE]
        report.curves.append(Curve(f"{name}: {what}", "percentile", "ms", points))
