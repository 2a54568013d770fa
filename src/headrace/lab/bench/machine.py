"""What a measurement depends on besides the code: processor, memory, versions, date, and how busy the machine is.

Reads ``/proc``; runs nothing. Every report carries these facts, so that a number never stands alone.
"""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from headrace import __version__
from headrace.kernels.processors import usable_processors

VECTOR_FLAGS = (
    "avx2",
    "fma",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx512_vbmi",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
)
PACKAGES = ("torch", "numpy")


def machine_facts(proc: Path = Path("/proc")) -> dict[str, Any]:
    """Plain values, ready for JSON. ``load_average`` tells whether others were computing too."""
    cpu = first_processor((proc / "cpuinfo").read_text())
    flags = set(cpu.get("flags", "").split())
    return {
        "cpu": cpu.get("model name", platform.processor() or "unknown"),
        "vector_flags": [flag for flag in VECTOR_FLAGS if flag in flags],
        "processors": usable_processors(),
        "l3_bytes": last_level_cache_bytes(),
        "memory_bytes": memory_bytes((proc / "meminfo").read_text()),
        "load_average": float((proc / "loadavg").read_text().split()[0]),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {"headrace": __version__} | {name: metadata.version(name) for name in PACKAGES},
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def first_processor(cpuinfo: str) -> dict[str, str]:
    """Fields of the first processor in the text of ``/proc/cpuinfo``."""
    pairs = (line.partition(":") for line in cpuinfo.split("\n\n", 1)[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def memory_bytes(meminfo: str) -> int:
    """Total memory from the text of ``/proc/meminfo``."""
    fields = dict(line.split(":", 1) for line in meminfo.splitlines())
    return int(fields["MemTotal"].split()[0]) * 1024


def last_level_cache_bytes(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Size of the largest cache that processor 0 sees; 0 when the system does not tell."""
    sizes = [path.read_text().strip() for path in folder.glob("index*/size")]
    return max((int(size.rstrip("K")) * 1024 for size in sizes if size.endswith("K")), default=0)


def peak_rss_bytes() -> int:
    """The most memory this process has had resident since the last ``reset_peak_rss``."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024


def reset_peak_rss() -> bool:
    """Starts the peak anew at what is resident now. False where the kernel does not allow it."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        return False
    return True


def describe(facts: dict[str, Any]) -> str:
    """One line for tables: processor, cores, vectors, date."""
    vectors = " ".join(facts["vector_flags"]) or "no vector extension"
    cores = f"{facts['cpu']}, {facts['processors']} processors, {vectors}"
    return f"{cores}; load {facts['load_average']:.1f}; {facts['date']}"
