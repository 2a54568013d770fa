"""``headrace bench peers``: prepares environments and files, then compares. Everything it makes lies under one folder.

The model files of the peers are made from the one pulled file: requantised by llama.cpp's own quantiser, or exported
in float32 by transformers. Nobody gets better weights than another; what differs is how they are rounded again.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace import LLM
from headrace.contract.errors import ConfigError
from headrace.kernels.runtime import usable_processors
from headrace.models.sources import resolve_model

from .compare import Comparison, Plan, compare
from .contenders import CONTENDERS, Contender
from .environments import ENVIRONMENTS, ensure
from .peer_process import PeerError, PeerProcess
from .perplexity import text_windows
from .tasks import all_tasks, chosen_tasks

Tell = Callable[[str], None]
MODEL = "smollm2-135m-instruct"
SOURCE_KIND = "Q4_1"  # how the pulled file is stored
MAKE_DEADLINE_S = 900.0


@dataclass(frozen=True)
class Workshop:
    """Where environments, model files and logs are kept, and how they are made when they are missing; ``threads`` as in
    ``Environment.variables``."""

    cache: Path
    source: Path
    tell: Tell
    threads: int | None = None
    _failed: dict[str, str] = field(default_factory=dict)

    def start(self, contender: Contender) -> PeerProcess:
        """Raises PeerError when the environment cannot be made."""
        return self._runner(contender.runner, contender.environment, contender.name)

    def file_of(self, contender: Contender) -> str:
        """The contender's model, made at first use. Raises PeerError."""
        kind = contender.file
        if kind == "hf":
            target = self.cache / "models" / "hf"
            return self._made(target, "peer_transformers", "transformers", "export", {})
        folder = self.cache / "models" / f"{kind}-{contender.environment or 'own'}"
        target = folder / f"{self.source.stem.rpartition('.')[0] or self.source.stem}.{kind}.gguf"
        if kind == SOURCE_KIND:
            if not target.exists():
                folder.mkdir(parents=True, exist_ok=True)
                part = target.with_name(target.name + ".part")
                shutil.copyfile(self.source, part)
                part.rename(target)
            return str(target)
        return self._made(target, "peer_llama_cpp", "llama", "quantise", {"source": str(self.source), "kind": kind})

    def _made(self, target: Path, runner: str, environment: str, do: str, arguments: dict[str, str]) -> str:
        """``target``, made by a runner under another name first: what has its final name is whole."""
        if target.exists():
            return str(target)
        part = target.with_name(target.name + ".part")
        target.parent.mkdir(parents=True, exist_ok=True)
        self.tell(f"making {target.name} for {do}")
        process = self._runner(runner, environment, f"make {target.name}")
        try:
            process.ask("load", MAKE_DEADLINE_S, model=str(self.source), threads=1)
            process.ask(do, MAKE_DEADLINE_S, target=str(part), **arguments)
        finally:
            process.close()
        part.rename(target)
        return str(target)

    def _runner(self, runner: str, environment: str | None, purpose: str) -> PeerProcess:
        logs = self.cache / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        log = logs / f"{purpose.replace(' ', '-')}.log"
        if environment is None:
            return PeerProcess(Path(sys.executable), runner, log)
        if environment in self._failed:
            raise PeerError(self._failed[environment])
        try:
            python = ensure(ENVIRONMENTS[environment], self.cache, self.tell)
        except PeerError as error:
            self._failed[environment] = str(error)
            raise
        return PeerProcess(python, runner, log, ENVIRONMENTS[environment].variables(self.threads))


def model_file(name: str) -> Path:
    """The pulled file of a model that is listed by name."""
    return Path(resolve_model(name).path)


def bench_peers(
    cache: Path,
    tell: Tell,
    contenders: Sequence[Contender] = CONTENDERS,
    rounds: int = 3,
    num_windows: int = 16,
    window: int = 1024,
    small: bool = False,
    only_tasks: str | None = None,
    threads: int | None = None,
    deadline_s: float = 900.0,
    keep: Callable[[Comparison], None] = lambda _: None,
) -> Comparison:
    """``num_windows`` 0 leaves accuracy out; ``only_tasks``: texts in the names of the tasks to do.

    Raises ConfigError for a folder that cannot be used; what a single peer fails at is in the result.
    """
    if cache.exists() and not cache.is_dir():
        raise ConfigError("cache", f"{cache} is not a folder")
    tasks = chosen_tasks(all_tasks(deadline_s, small), only_tasks)
    threads = threads or usable_processors()
    workshop = Workshop(cache.absolute(), model_file(MODEL), tell, threads)
    windows: Sequence[list[int]] = ()
    if num_windows:
        with LLM(MODEL, kv_memory=64 << 20, max_model_len=1024) as llm:  # for its tokenizer
            windows = text_windows(llm, window, num_windows)
    plan = Plan(
        tasks=tasks,
        windows=windows,
        threads=threads,
        rounds=rounds,
        load_deadline_s=deadline_s,
        run_deadline_s=deadline_s,
    )
    return compare(contenders, plan, workshop.start, workshop.file_of, tell, keep)
