"""From flags to a loaded model, with progress on stderr: bars on a terminal, one plain line per stage elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.config import EngineConfig
from headrace.contract.errors import ConfigError

from .console import bytes_text, to_stderr
from .interrupts import import_engine

if TYPE_CHECKING:
    from headrace.api.llm import LLM

STAGES = {"pull": "pulling", "load": "loading", "start": "starting"}
UNITS = {"load": "tensors", "start": "engines"}


class Loaded(NamedTuple):
    """``load_s``: seconds from nothing to a model that is ready, pulling included. ``speculates``: it was asked to."""

    llm: LLM
    load_s: float
    speculates: bool = False


@contextmanager
def loaded_llm(config: EngineConfig, verbose: bool) -> Iterator[Loaded]:
    """A model for the length of a ``with``. Raises ConfigError for a name nothing is known by."""
    check_model_names(config)
    start = time.monotonic()
    import_engine()
    with progress_bars(config.model.model) as progress:
        from headrace.api.llm import LLM

        llm = LLM(config=config, progress=progress)
    with llm:
        seconds = time.monotonic() - start
        if verbose:
            to_stderr(f"{llm.model_name}: loaded in {seconds:.1f} s; context {llm.max_model_len} tokens")
            for words in (llm.pool.words, *llm.notes):
                to_stderr(words)
        yield Loaded(llm, seconds, config.speculation.speculation != "none")


def check_model_names(config: EngineConfig) -> None:
    """Of the model, and of the one that drafts for it."""
    check_model_name(config.model.model)
    if config.speculation.draft_model is not None:
        check_model_name(config.speculation.draft_model, "draft_model")


def check_model_name(spec: str, field: str = "model") -> None:
    """Refuses a name that is neither listed nor on disk, and says what may have been meant."""
    from headrace.models.sources import list_models

    kind, colon, rest = spec.partition(":")
    if colon and kind in ("hf", "pypi"):
        return
    path = Path(rest if colon and kind == "dummy" else spec).expanduser()
    if path.is_file() and kind != "dummy" and path.suffix != ".gguf":
        raise ConfigError(field, f"{spec} is a file but not a .gguf file; give a directory, a .gguf file or a name")
    if path.exists():
        return
    names = [listing.name for listing in list_models()]
    if spec in names:
        return
    near = get_close_matches(spec, names, n=2, cutoff=0.5)
    meant = f"Did you mean {' or '.join(near)}?" if near else "`headrace models list` shows the known names"
    raise ConfigError(field, f"there is no model, file or directory {spec!r}. {meant}")


@contextmanager
def progress_bars(name: str) -> Iterator[Any]:
    """A callback ``(stage, done, total)`` that shows how far pulling (bytes), loading (tensors) and starting (engines)
    have come."""
    if not sys.stderr.isatty():
        yield PlainProgress(name)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        yield BarProgress(name, display)


class PlainProgress:
    """One line when a stage begins."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seen: set[str] = set()

    def __call__(self, stage: str, _done: int, total: int) -> None:
        if stage not in self._seen:
            self._seen.add(stage)
            to_stderr(f"{STAGES.get(stage, stage)} {self._name} ({_amount(stage, total)})")


class BarProgress:
    """One bar per stage."""

    def __init__(self, name: str, display: Any) -> None:
        self._name = name
        self._display = display
        self._tasks: dict[str, Any] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage not in self._tasks:
            title = f"{STAGES.get(stage, stage)} {self._name}"
            self._tasks[stage] = self._display.add_task(title, total=total, amount="")
        part = bytes_text(done) if stage == "pull" else str(done)
        amount = f"{part} of {_amount(stage, total)}"
        self._display.update(self._tasks[stage], completed=done, total=total, amount=amount)


def _amount(stage: str, count: int) -> str:
    return bytes_text(count) if stage == "pull" else f"{count} {UNITS.get(stage, '')}".rstrip()
