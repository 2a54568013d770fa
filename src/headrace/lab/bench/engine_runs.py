"""Runs workloads through this engine's public front and reports when tokens came. Takes no time inside the engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

from headrace.api.llm import LLM
from headrace.config import EngineConfig
from headrace.contract.errors import ConfigError, HeadraceError
from headrace.contract.request import SamplingParams
from headrace.models.sources import resolve_model

from .model_limits import ModelCost, model_cost
from .progress import now
from .roofline import Peaks, measure_peaks


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds from submission to the first token of any request, and to the last of all."""

    first_s: float
    total_s: float
    num_output: int

    @property
    def decode_rate(self) -> float:
        """Tokens per second after the first one."""
        return (self.num_output - 1) / (self.total_s - self.first_s)


@dataclass(frozen=True, slots=True)
class Need:
    """A sequence that will be run, in tokens, and the options that its two parts come from."""

    prompt_option: str
    prompt: int
    output: int
    output_option: str = "tokens"

    def check(self, most: int) -> None:
        """Raises ConfigError when an engine whose longest sequence is ``most`` tokens cannot run it."""
        if self.prompt + self.output > most:
            option = self.prompt_option if self.prompt >= most else self.output_option
            parts = f"{self.prompt} tokens of a prompt and {self.output} to generate"
            raise ConfigError(option, f"{parts} exceed this engine's longest sequence, {most} tokens")


@dataclass(frozen=True, slots=True)
class Bench:
    """An engine to measure and what its machine allows. ``cost`` is None for models that are not one GGUF file."""

    llm: LLM
    peaks: Peaks
    cost: ModelCost | None
    in_floats: bool

    def fits(self, num_tokens: int) -> bool:
        return num_tokens <= self.llm.max_model_len


def without_store(config: EngineConfig) -> EngineConfig:
    """The same without a KV store, unless one was asked for: what an earlier run computed must not be measured."""
    if config.cache.kv_store != "auto":
        return config
    return replace(config, cache=replace(config.cache, kv_store="off"))


@contextmanager
def opened(config: EngineConfig, need: Need) -> Iterator[Bench]:
    """The engine for the length of a ``with``, then the machine's limits. Raises ConfigError before anything is
    measured when ``need`` cannot be run."""
    file = Path(resolve_model(config.model.model, offline=config.model.offline).path)
    now(f"loading {config.model.model}")
    with LLM(config=without_store(config)) as llm:
        from headrace import _kernels

        need.check(llm.max_model_len)
        peaks = measure_peaks(_kernels.num_threads(), repeats=3)
        kv_bytes = llm.pool.block_bytes / config.cache.block_size
        yield Bench(llm, peaks, model_cost(file, kv_bytes), config.model.dtype == "float32")


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)


def run_requests(llm: LLM, prompts: Sequence[list[int]], max_tokens: int) -> Run:
    """All prompts at once, greedily, each for exactly ``max_tokens`` tokens. Raises HeadraceError if one fails."""
    prepared = [llm.prepare({"prompt_token_ids": ids}, greedy(max_tokens)) for ids in prompts]
    start, first, num_output = perf_counter(), 0.0, 0
    for news in llm.feed(prepared):
        if news and not first:
            first = perf_counter() - start
        for output in news:
            if output.finished:
                num_output += len(output.outputs[0].token_ids)
    total = perf_counter() - start
    if num_output != len(prompts) * max_tokens:
        raise HeadraceError(f"{num_output} tokens instead of {len(prompts) * max_tokens}: a request failed")
    return Run(first, total, num_output)


def step_seconds(llm: LLM, prompts: Sequence[list[int]], num_steps: int) -> list[float]:
    """Seconds of each turn of the engine in which every sequence got its next token, after the first such turn."""
    prepared = [llm.prepare({"prompt_token_ids": ids}, greedy(num_steps + 8)) for ids in prompts]
    times: list[float] = []
    full_before, before = False, perf_counter()
    for news in llm.feed(prepared):
        now = perf_counter()
        full = len(news) == len(prompts)
        if full and full_before:
            times.append(now - before)
        full_before, before = full, now
        if len(times) == num_steps:
            break
    if not times:
        raise HeadraceError(f"{len(prompts)} rows never ran in one step: the KV pool or max_seqs holds fewer")
    return times
