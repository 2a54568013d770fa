"""``check`` and ``refresh`` as functions: open the engine, measure what is owned, compare or write. No printing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from headrace import __version__
from headrace.api.llm import LLM
from headrace.config import EngineConfig
from headrace.contract.errors import ConfigError
from headrace.lab.bench.engine_runs import without_store
from headrace.models.sources import resolve_model

from .baseline import FORMAT, SHIPPED, Baseline, Entry, Reason, read, write
from .compare import Difference, compare
from .key import Key, key_of, model_name, weights_digest
from .lock import Lock
from .measure import measure
from .suite import TINY, Sample, Share, suite

PARTIAL = "would be partial: a baseline holds every sample, so neither group nor rank can be given"


@dataclass(frozen=True, slots=True)
class Checked:
    """``compared`` of ``total`` samples were this share's."""

    key: Key
    path: Path
    compared: int
    total: int
    differences: list[Difference]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        facts = {"ok": not self.differences, "key": msgspec.to_builtins(self.key), "baseline": str(self.path)}
        counts = {"compared": self.compared, "total": self.total}
        return facts | counts | {"differences": msgspec.to_builtins(self.differences)}


@dataclass(frozen=True, slots=True)
class Subject:
    """An open engine and what identifies it."""

    llm: LLM
    key: Key
    weights: str
    samples: list[Sample]


def check(config: EngineConfig, folder: Path, share: Share, candidate: Path | None = None) -> Checked:
    """Compares; with ``candidate`` also writes what was measured as a baseline to that file.

    Raises ConfigError before any work when the candidate would be partial, before measuring when there is no baseline.
    """
    share.check()
    if candidate is not None:
        _check_candidate(candidate, folder, share)
    with _opened(config) as subject:
        path = folder / subject.key.file
        baseline = read(path, subject.key, refresh_command(config, folder))
        found = _measured(subject, share)
        if candidate is not None:
            write(candidate, _baseline(subject, found, [*baseline.history, _reason("candidate, not accepted")]))
        differences = compare(baseline, found, subject.weights, share)
        return Checked(subject.key, path, len(found), len(subject.samples), differences)


def refresh(config: EngineConfig, folder: Path, reason: str, share: Share | None = None) -> Checked:
    """Measures everything and writes it, the reason added to the file's history; returns what changed.

    Raises ConfigError when there is no reason, when it would be partial, and while somebody else refreshes.
    """
    share = share or Share()
    share.check()
    if not share.whole:
        raise ConfigError("refresh", PARTIAL)
    if not reason.strip():
        raise ConfigError("reason", "is empty: the file keeps why it was changed")
    with _opened(config) as subject:
        path = folder / subject.key.file
        with Lock(path.with_name(f"{path.name}.lock")).held() as lock:
            old = read(path, subject.key, refresh_command(config, folder)) if path.exists() else None
            found = _measured(subject, share)
            lock.require()
            history = [*(old.history if old else ()), _reason(reason.strip())]
            write(path, _baseline(subject, found, history))
        differences = compare(old, found, subject.weights, share) if old else []
        return Checked(subject.key, path, len(found), len(subject.samples), differences)


def _check_candidate(candidate: Path, folder: Path, share: Share) -> None:
    if not share.whole:
        raise ConfigError("candidate", PARTIAL)
    if candidate.resolve().parent.parent in (folder.resolve(), SHIPPED.resolve()):
        raise ConfigError("candidate", f"{candidate} lies among the baselines, which only refresh writes; name another")


def refresh_command(config: EngineConfig, folder: Path) -> str:
    """What to type for a baseline of exactly this key, in this folder."""
    tiny, usual = config.model.model == f"dummy:{TINY}", EngineConfig()
    wishes = [
        ("--model", "" if tiny else config.model.model, usual.model.model),
        ("--dtype", config.model.dtype, usual.model.dtype),
        ("--backend", config.model.backend, usual.model.backend),
        ("--kv-dtype", config.cache.kv_dtype, usual.cache.kv_dtype),
        ("--folder", str(folder), str(SHIPPED)),
    ]
    given = [word for flag, value, default in wishes if value not in ("", default) for word in (flag, value)]
    modes = ["--tiny"] * tiny + ["--free"] * (not config.runtime.deterministic)
    return shlex.join(["headrace", "golden", "refresh", *modes, *given]) + " --reason ..."


@contextmanager
def _opened(config: EngineConfig) -> Iterator[Subject]:
    source = resolve_model(config.model.model, offline=config.model.offline)
    with LLM(config=without_store(config)) as llm:
        from headrace.kernels.cpu.runtime import isa

        key = key_of(config, model_name(source), isa())
        yield Subject(llm, key, weights_digest(source), suite(llm, config.model.offline))


def _measured(subject: Subject, share: Share) -> dict[str, Entry]:
    return measure(subject.llm, [s for s in subject.samples if share.owns(s.index, s.group)])


def _baseline(subject: Subject, found: dict[str, Entry], history: list[Reason]) -> Baseline:
    if set(found) != {sample.name for sample in subject.samples}:
        raise ConfigError("baseline", f"{len(found)} of {len(subject.samples)} samples: {PARTIAL}")
    return Baseline(FORMAT, subject.key, subject.weights, history, found)


def _reason(text: str) -> Reason:
    return Reason(datetime.now(UTC).strftime("%Y-%m-%d"), __version__, text)
