"""Processors, cores, memory nodes and caches of this machine, read from the kernel's own files (Linux sysfs).

Needs neither torch nor privileges, and takes the root as an argument so that tests can show it other machines. What a
file does not tell (a container that hides it) has a neutral default; nothing here raises for a missing or odd file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SYSTEM = Path("/sys/devices/system")
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Processor:
    """A hardware thread. ``core`` is unique within ``package``; ``thread`` counts the threads of a core from 0."""

    id: int
    core: int
    package: int
    node: int
    thread: int


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache as one processor sees it; ``sharers`` processors have it in common."""

    level: int
    kind: str
    size_bytes: int
    sharers: int


@dataclass(frozen=True, slots=True)
class Topology:
    """``quota``: processors' worth of time a control group grants, None without a limit."""

    processors: tuple[Processor, ...]
    caches: tuple[Cache, ...]
    quota: float | None

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(sorted({each.node for each in self.processors}))

    @property
    def num_cores(self) -> int:
        return len({(each.package, each.core) for each in self.processors})

    def only(self, allowed: Iterable[int]) -> Topology:
        """The part this process may use (its affinity mask)."""
        wanted = set(allowed)
        return Topology(tuple(p for p in self.processors if p.id in wanted), self.caches, self.quota)


def discover(system: Path = SYSTEM, cgroup: Path = CGROUP) -> Topology:
    """Every processor that is online. At least one: processor 0, when nothing can be read."""
    node_of = _nodes(system / "node")
    seen: dict[tuple[int, int], int] = {}
    processors = []
    for number in parse_list(_text(system / "cpu" / "online")) or [0]:
        folder = system / "cpu" / f"cpu{number}" / "topology"
        package = max(0, _number(folder / "physical_package_id", 0))
        core = max(0, _number(folder / "core_id", number))
        thread = seen[package, core] = seen.get((package, core), -1) + 1
        processors.append(Processor(number, core, package, node_of.get(number, 0), thread))
    first = processors[0].id
    return Topology(tuple(processors), _caches(system / "cpu" / f"cpu{first}" / "cache"), _quota(cgroup))


def usable(topology: Topology | None = None) -> Topology:
    """What this process may run on."""
    whole = topology or discover()
    part = whole.only(os.sched_getaffinity(0))
    return part if part.processors else whole


def parse_list(text: str) -> list[int]:
    """``0-3,8,10-11`` as numbers, in order; what is not a number or a range is left out."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        low, dash, high = part.partition("-")
        if low.isdecimal() and (high.isdecimal() if dash else True):
            numbers.update(range(int(low), int(high or low) + 1))
    return sorted(numbers)


def _nodes(folder: Path) -> dict[int, int]:
    """Memory node by processor; empty on a machine that has no such folder."""
    return {
        processor: node
        for node in parse_list(_text(folder / "online"))
        for processor in parse_list(_text(folder / f"node{node}" / "cpulist"))
    }


def _caches(folder: Path) -> tuple[Cache, ...]:
    found = []
    for index in sorted(folder.glob("index*")) if folder.is_dir() else ():
        size = _size(_text(index / "size"))
        if size:
            kind = _text(index / "type").strip().lower() or "unified"
            sharers = len(parse_list(_text(index / "shared_cpu_list"))) or 1
            found.append(Cache(_number(index / "level", 0), kind, size, sharers))
    return tuple(sorted(found, key=lambda cache: (cache.level, cache.kind)))


def _quota(cgroup: Path) -> float | None:
    """Version 2 (``cpu.max``: quota and period in µs) or version 1 of control groups."""
    quota, _, period = _text(cgroup / "cpu.max").strip().partition(" ")
    if not quota:
        quota = _text(cgroup / "cpu" / "cpu.cfs_quota_us").strip()
        period = _text(cgroup / "cpu" / "cpu.cfs_period_us").strip()
    if quota.isdecimal() and period.isdecimal() and int(period) > 0 and int(quota) > 0:
        return int(quota) / int(period)
    return None


def _size(text: str) -> int:
    """``48K`` in bytes, 0 for anything else."""
    digits, unit = text.strip()[:-1], text.strip()[-1:]
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(unit, 0)
    return int(digits) * scale if digits.isdecimal() else 0


def _number(path: Path, default: int) -> int:
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdecimal() else default


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
