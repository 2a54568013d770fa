"""The single checks of ``headrace doctor``. None needs torch, none waits long, none raises."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module, metadata
from pathlib import Path
from urllib.parse import urlsplit

from headrace import __version__, env
from headrace.kernels.placement import default_threads, place
from headrace.kernels.topology import Topology, usable
from headrace.lab.bench.machine import VECTOR_FLAGS

from .console import bytes_text

INDEX_DEADLINE_S = 5.0
PACKAGES = ("torch", "numpy", "tokenizers", "gguf", "safetensors", "jinja2", "msgspec")
LOW_DISK_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """``status``: ``ok``, ``note`` (works, worth knowing) or ``broken`` (models cannot run until it is mended)."""

    name: str
    status: str
    words: str


def run_checks(offline: bool) -> list[Finding]:
    """All checks, in the order they are shown."""
    checks: list[tuple[str, Callable[[], Finding]]] = [
        ("headrace", check_version),
        ("packages", check_packages),
        ("processor", check_processor),
        ("extensions", check_extensions),
        ("instruction set", check_isa),
        ("topology", check_topology),
        ("threads", check_threads),
        ("memory", check_memory),
        ("cache", check_cache),
    ]
    if not offline:
        checks.append(("package index", check_index))
    return [_guarded(name, check) for name, check in checks]


def _guarded(name: str, check: Callable[[], Finding]) -> Finding:
    try:
        return replace(check(), name=name)
    except Exception as error:
        return Finding(name, "broken", f"{type(error).__name__}: {error}")


def _ok(words: str) -> Finding:
    return Finding("", "ok", words)


def check_version() -> Finding:
    python = ".".join(map(str, sys.version_info[:3]))
    return _ok(f"{__version__}, Python {python}, {platform.system()} {platform.release()} {platform.machine()}")


def check_packages() -> Finding:
    """Versions of what is built upon, without importing it."""
    found, missing = [], []
    for package in PACKAGES:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            missing.append(package)
    if missing:
        return Finding("", "broken", f"not installed: {', '.join(missing)}; `pip install headrace` brings them")
    return _ok(", ".join(found))


def check_processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> Finding:
    """The model name and the vector extensions the kernels know."""
    fields = dict(_fields(cpuinfo)) if cpuinfo.exists() else {}
    flags = set(fields.get("flags", "").split())
    vectors = [name for name in VECTOR_FLAGS if name in flags]
    name = fields.get("model name") or platform.processor() or "unknown"
    return _ok(f"{name}; {' '.join(vectors) or 'no vector extension that the kernels use'}")


def _fields(cpuinfo: Path) -> list[tuple[str, str]]:
    """Name and value of the first processor's lines."""
    first = cpuinfo.read_text().split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def check_extensions() -> Finding:
    """The two compiled modules."""
    try:
        files = [Path(str(import_module(f"headrace.{name}").__file__)).name for name in ("_core", "_kernels")]
    except ImportError as error:
        return Finding("", "broken", f"cannot be loaded ({error}); build and install with `pip install .`")
    return _ok(f"{' and '.join(files)} loaded")


def check_isa() -> Finding:
    from headrace import _kernels

    available, wanted = _kernels.available_isas(), env.isa()
    if wanted is not None and wanted not in available:
        return Finding("", "broken", f"HEADRACE_ISA={wanted} is not available; choose one of {', '.join(available)}")
    chosen = wanted or _kernels.isa()
    words = f"{chosen} (available: {', '.join(available)})"
    return Finding("", "note", f"{words}: slow") if chosen == "scalar" else _ok(words)


def check_topology(topology: Topology | None = None) -> Finding:
    """Cores, memory nodes and caches that this process may use."""
    found = topology or usable()
    parts = [
        f"{len(found.processors)} processors on {found.num_cores} cores, {len(found.nodes)} memory node(s)",
        *(
            f"L{cache.level} {bytes_text(cache.size_bytes)}" + (f" for {cache.sharers}" if cache.sharers > 1 else "")
            for cache in found.caches
            if cache.kind != "instruction"
        ),
    ]
    if found.quota is not None:
        parts.append(f"a quota of {found.quota:g} processors")
    return _ok(", ".join(parts))


def check_threads() -> Finding:
    """How many kernel threads run, and where they are bound, unless told otherwise."""
    found = usable()
    asked = env.num_threads()
    count = asked or default_threads(found)
    chosen = f"{count} (HEADRACE_NUM_THREADS)" if asked else str(count)
    bound = place(found, count, "auto").processors
    where = f", bound to processors {', '.join(map(str, bound))}" if bound else ", not bound"
    words = f"{chosen}{where}; this process may use {len(found.processors)} of {os.cpu_count()} processors"
    if count > default_threads(found):
        return Finding("", "note", f"{words}: threads beyond {default_threads(found)} wait for the others")
    return _ok(words)


def check_memory() -> Finding:
    from headrace.worker.memory import free_memory_bytes

    free = free_memory_bytes()
    return _ok(f"{bytes_text(free)} free; the KV cache takes half of it unless told otherwise")


def check_cache() -> Finding:
    """Where models are kept, and whether they can be."""
    folder = env.cache_dir()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(existing, os.W_OK):
        return Finding("", "note", f"{folder} cannot be written: no model can be pulled; HEADRACE_CACHE moves it")
    free = shutil.disk_usage(existing).free
    words = f"{folder}, {bytes_text(free)} free on its disk"
    return Finding("", "note", f"{words}: little for models") if free < LOW_DISK_BYTES else _ok(words)


def check_index() -> Finding:
    """Whether the place that the default model comes from answers."""
    from headrace.models.sources.catalogue import DEFAULT_MODEL, ENTRIES
    from headrace.models.sources.pip_config import pip_config

    config = pip_config()
    package = ENTRIES[DEFAULT_MODEL].wheels[0][0]
    transport = replace(config.transport, timeout_s=INDEX_DEADLINE_S)
    answers, failures = [], []
    for index in config.indexes:
        try:
            transport.open(f"{index}/{package}/").stream.close()
            answers.append(without_login(index))
        except OSError as error:
            failures.append(f"{without_login(index)} ({error})")
    if answers:
        return _ok(f"{', '.join(answers)} answers")
    silent = ", ".join(failures) or "none is configured"
    return Finding("", "note", f"no answer: {silent}; only models that are here already can run")


def without_login(url: str) -> str:
    """An address without the name and password it may hold."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
