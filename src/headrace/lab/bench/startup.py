"""From process start to the first token, in a process of its own; and what importing torch alone takes.

The child is told when it was started on the system-wide monotonic clock, so the interpreter's own start counts too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from time import monotonic
from typing import Any

from headrace.config import EngineConfig
from headrace.contract.errors import HeadraceError

from .engine_settings import changed_settings, engine_settings
from .progress import now
from .report import Report
from .stats import spread

DEADLINE_S = 300.0
FIRST_TOKEN = "headrace.lab.bench.first_token"
IMPORT_TORCH = (
    "import sys, time, json; import torch; "
    "peak = int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]) * 1024; "
    "print(json.dumps({'total_s': time.monotonic() - float(sys.argv[1]), 'peak_rss_bytes': peak}))"
)


def bench_startup(config: EngineConfig, repeats: int = 5) -> Report:
    """Start to first token with warm caches: the first start is not counted. Raises HeadraceError if a start fails."""
    report = Report("startup", engine_settings(config) | {"repeats": repeats})
    settings = changed_settings(config)
    now(f"{repeats + 1} starts, then as many of importing torch")
    starts = [_child(["-m", FIRST_TOKEN], json.dumps(settings)) for _ in range(repeats + 1)][1:]
    for name, what in (("total_s", "process start to first token"), ("load_s", "of it loading the model")):
        report.add(what, "s", spread([start[name] for start in starts]))
    report.add("of it importing", "s", spread([start["import_s"] for start in starts]))
    torch = [_child(["-c", IMPORT_TORCH]) for _ in range(repeats + 1)][1:]
    loads = all(start["torch"] for start in starts)
    note = "part of the start above" if loads else "not part of the start above: this path does without torch"
    report.add("a process that imports torch and ends", "s", spread([each["total_s"] for each in torch]), note=note)
    for what, runs in (("peak memory at the first token", starts), ("peak memory of importing torch", torch)):
        report.add(what, "MiB", spread([run["peak_rss_bytes"] / (1 << 20) for run in runs]))
    return report.finish()


def _child(command: list[str], *arguments: str) -> dict[str, Any]:
    full = [sys.executable, *command, str(monotonic()), *arguments]
    try:
        done = subprocess.run(full, capture_output=True, text=True, timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        raise HeadraceError(f"a start took more than {DEADLINE_S:.0f} s") from None
    if done.returncode:
        raise HeadraceError(f"a start failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result
