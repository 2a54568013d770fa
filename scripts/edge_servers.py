"""The servers that ``edge_overhead.py`` puts side by side: how each is started, awaited, rested and ended.

Other engines' servers run in environments and on model files of their own, which ``headrace bench peers`` makes too;
what is missing is made at first use. Measures nothing but processor time. Not a program.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.contract.errors import HeadraceError
from headrace.lab.bench.contenders import CONTENDERS
from headrace.lab.bench.environments import ENVIRONMENTS, ensure
from headrace.lab.bench.load.client import ServerError, Target, get_json
from headrace.lab.bench.peers_bench import MODEL, Workshop, model_file

START_S = 900.0  # an engine that compiles its kernels at every start takes minutes
STOP_S = 60.0
CONTEXT = 2048
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """``command`` has ``{port}`` where the port goes. ``extra``: fields of a request that keep it from ending early.
    ``rests``: it may be stopped while others run. ``splits``: HTTP and engine are different processes."""

    name: str
    command: Sequence[str]
    model: str
    variables: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    rests: bool = True
    splits: bool = True


class ServerProcess:
    """A running server with a process group of its own. Raises SystemExit when it is not ready in time."""

    def __init__(self, recipe: Recipe, log: Path) -> None:
        self.recipe = recipe
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [part.format(port=port) for part in recipe.command]
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command, stdout=file, stderr=file, start_new_session=True, env={**os.environ, **recipe.variables}
            )
        self.target = Target(f"http://127.0.0.1:{port}", recipe.model, extra=recipe.extra)
        self._await(log)

    def _await(self, log: Path) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(ServerError, ValueError):
                asyncio.run(get_json(self.target, "/v1/models"))
                return
            time.sleep(0.2)
        self.close()
        lines = log.read_text("utf-8", "replace").strip().splitlines()
        raise SystemExit(f"{self.recipe.name} did not start; see {log}: {' / '.join(lines[-3:])[-600:]}")

    def cpu_s(self) -> tuple[float, float]:
        """Processor seconds so far: of the process that speaks HTTP, and of all of the server's processes."""
        return _cpu_s(self._process.pid), sum(map(_cpu_s, _tree(self._process.pid)))

    def rest(self) -> None:
        """Takes no time from whoever runs next. Ours stays awake: its processes watch one another by the clock."""
        if self.recipe.rests:
            self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        if self.recipe.rests:
            self._signal(signal.SIGCONT)

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()
        self._signal(signal.SIGKILL)  # whatever of its group outlives it

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def _tree(pid: int) -> list[int]:
    """The process and all below it."""
    found = [pid]
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += _tree(int(child))
    return found


def _cpu_s(pid: int) -> float:
    """User and system time of one process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def own(threads: int, kv_memory: str) -> Recipe:
    command = [sys.executable, "-m", "headrace", "serve", "-m", MODEL, "--port", "{port}"]
    command += [
        "--threads",
        str(threads),
        "--kv-memory",
        kv_memory,
        "--max-model-len",
        str(CONTEXT),
        "--kv-store",
        "off",
    ]
    return Recipe("headrace", command, MODEL, extra={"ignore_eos": True}, rests=False)


def llama_cpp(cache: Path, threads: int, tell: Tell, bans: Sequence[int]) -> Recipe:
    """llama-cpp-python's server, one request at a time. ``bans``: ids that would end an answer early."""
    base = ENVIRONMENTS["llama"]
    pins = tuple(pin.replace("llama-cpp-python", "llama-cpp-python[server]") for pin in base.pins)
    python = ensure(replace(base, name="llama-server", pins=pins), cache, tell)
    file = _file(cache, "llama.cpp Q4_1", tell)
    command = [str(python), "-m", "llama_cpp.server", "--model", file, "--host", "127.0.0.1", "--port", "{port}"]
    command += ["--model_alias", MODEL, "--n_ctx", str(CONTEXT), "--interrupt_requests", "False", "--verbose", "False"]
    command += ["--n_threads", str(threads), "--n_threads_batch", str(threads)]
    extra = {"logit_bias": {str(index): -100.0 for index in bans}}
    return Recipe("llama-cpp-python Q4_1", command, MODEL, extra=extra, splits=False)


def vllm(cache: Path, threads: int, tell: Tell) -> Recipe:
    """vLLM's CPU server, on the exported float32 weights: it computes in no 4-bit format here."""
    environment = ENVIRONMENTS["vllm"]
    python = ensure(environment, cache, tell)
    folder = _file(cache, "vLLM fp32", tell)
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", folder]  # its CLI wants a name
    command += ["--host", "127.0.0.1", "--port", "{port}", "--served-model-name", MODEL, "--dtype", "float32"]
    command += ["--max-model-len", str(CONTEXT), "--max-num-seqs", "64"]
    usable = sorted(os.sched_getaffinity(0))[:threads]
    variables = {**environment.run, "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, usable))}
    return Recipe("vLLM fp32", command, MODEL, variables, {"ignore_eos": True})


def _file(cache: Path, contender: str, tell: Tell) -> str:
    workshop = Workshop(cache.absolute(), model_file(MODEL), tell)
    return workshop.file_of(next(each for each in CONTENDERS if each.name == contender))


def peers(names: Sequence[str], cache: Path, threads: int, tell: Tell, bans: Sequence[int]) -> list[Recipe]:
    """Those asked for; one that cannot be made is told and left out."""
    makers: dict[str, Callable[[], Recipe]] = {
        "vllm": lambda: vllm(cache, threads, tell),
        "llama-cpp-python": lambda: llama_cpp(cache, threads, tell, bans),
    }
    if unknown := set(names) - set(makers):
        raise SystemExit(f"--peers: unknown {', '.join(sorted(unknown))}; known: {', '.join(makers)}")
    made = []
    for name in names:
        try:
            made.append(makers[name]())
        except HeadraceError as error:
            tell(f"{name} is left out: {error}")
    return made
