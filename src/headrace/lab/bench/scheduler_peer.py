"""Another engine's scheduler, given the same requests as ours in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from .contenders import Contender
from .peer_process import PeerProcess
from .peers_bench import MODEL, Tell, Workshop, model_file
from .workload import draw_prompt

BLOCK_SIZE = 32
PROMPT_TOKENS = 32
NUM_STEPS = 50
NUM_LOOKUPS = 50
DEADLINE_S = 600.0
VLLM_SCHEDULER = Contender("vLLM scheduler", "peer_vllm_scheduler", "vllm", "hf", {"block_size": BLOCK_SIZE})


class PeerScheduler:
    """Steps and lookups of the scheduler behind ``process``. Raises PeerError when it fails or is too slow."""

    def __init__(self, name: str, process: PeerProcess, model: str) -> None:
        self.name = name
        self._process = process
        self.version = process.ask("load", DEADLINE_S, model=model, threads=1, block_size=BLOCK_SIZE)["version"]

    def step(self, count: int) -> float:
        """Median seconds of schedule + update with ``count`` decoding sequences."""
        prompts = [draw_prompt(PROMPT_TOKENS, f"scheduler {i}") for i in range(count)]
        seconds: list[float] = self._process.ask("steps", DEADLINE_S, prompts=prompts, num_steps=NUM_STEPS)["seconds"]
        return median(seconds)

    def lookup(self, prompt: list[int]) -> tuple[float, float]:
        """Seconds to hash a prompt, and to find it cached when the hashes are computed."""
        answer = self._process.ask("lookup", DEADLINE_S, prompt=prompt, repeats=NUM_LOOKUPS)
        return answer["hash_s"], answer["lookup_s"]


@contextmanager
def vllm_scheduler(cache: Path, tell: Tell) -> Iterator[PeerScheduler]:
    """vLLM's scheduler for the length of a ``with``; its environment and files are made at first use. PeerError."""
    workshop = Workshop(cache.absolute(), model_file(MODEL), tell)
    model = workshop.file_of(VLLM_SCHEDULER)
    process = workshop.start(VLLM_SCHEDULER)
    try:
        yield PeerScheduler("vLLM", process, model)
    finally:
        process.close()
