"""Groups of options as dataclasses, and ``flagged``: a command takes a group as one argument.

What an option means is said once, here, for every command that has it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from headrace.config import EngineConfig, resolve
from headrace.contract.request import SamplingParams
from headrace.contract.sizes import MAX_THREADS, parse_size

ANY_VOCABULARY = 1 << 31  # none of these options names a token id


@dataclasses.dataclass(frozen=True)
class EngineFlags:
    """Which model, and how it runs. What is not given comes from the TOML file, then from the defaults."""

    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="A listed name, a directory, a .gguf file, hf:ORG/NAME, pypi:PACKAGE==VERSION or dummy:CONFIG.json.",
        ),
    ] = None
    dtype: Annotated[str | None, typer.Option(help="auto or float32.")] = None
    backend: Annotated[str | None, typer.Option(help="cpu (C++ kernels) or reference (pure torch).")] = None
    threads: Annotated[
        int | None, typer.Option(min=1, max=MAX_THREADS, help="Kernel threads. Default: every usable processor.")
    ] = None
    pinning: Annotated[
        str | None,
        typer.Option(help="Bind threads to processors: auto (where memory has several nodes), none or cores."),
    ] = None
    graphs: Annotated[
        str | None, typer.Option(help="Step graphs: full, piecewise, full_decode_only, full_and_piecewise or none.")
    ] = None
    kv_memory: Annotated[
        str | None, typer.Option(help="Memory for the KV cache, such as 512MiB or 2G. Default: half of what is free.")
    ] = None
    kv_dtype: Annotated[
        str | None, typer.Option(help="How the KV cache is kept: auto, float32, bfloat16, int16 or int8.")
    ] = None
    kv_store: Annotated[
        str | None,
        typer.Option(
            help="Where computed KV outlives the engine: a folder, tcp://HOST:PORT, s3://BUCKET/PREFIX, "
            "mooncake://HOST:PORT, striped:FILE (twelve places, one a line), or off."
        ),
    ] = None
    kv_store_size: Annotated[
        str | None,
        typer.Option(help="Most the store may take, such as 20GiB. Default: 4 GiB, a tenth of the free disk."),
    ] = None
    kv_store_secret: Annotated[
        Path | None, typer.Option(help="File with the secret of the store's server (kvstore serve --secret).")
    ] = None
    kv_fetch: Annotated[
        str | None, typer.Option(help="Who reads from the KV store: thread, or process (one beside the engine).")
    ] = None
    kv_host_memory: Annotated[
        str | None, typer.Option(help="Memory for stored sliding windows, such as 256MiB; 0: none.")
    ] = None
    kv_directory: Annotated[
        str | None, typer.Option(help="Store server that knows which engine holds which windows, tcp://HOST:PORT.")
    ] = None
    max_model_len: Annotated[int | None, typer.Option(help="Longest sequence in tokens, prompt included.")] = None
    prefill_keep: Annotated[
        int | None,
        typer.Option(
            help="Compute only so many of a prompt's last tokens in all layers (DeepSeek-V4.1); at least its window "
            "and 12 more."
        ),
    ] = None
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Refuse whatever results could depend on; unseeded draws repeat."),
    ] = False
    speculation: Annotated[
        str | None,
        typer.Option(
            help="Guess tokens and verify them together: none, ngram, suffix, draft_model, draft_heads or self."
        ),
    ] = None
    draft_model: Annotated[
        str | None, typer.Option(help="The smaller model that guesses, for --speculation draft_model.")
    ] = None
    max_drafts: Annotated[int | None, typer.Option(help="Guesses per sequence and step at most.")] = None
    speculation_guard: Annotated[
        bool | None,
        typer.Option(
            "--speculation-guard/--no-speculation-guard",
            help="Verify only guesses worth their time, and pause where guessing loses (default), or all of them.",
            show_default=False,
        ),
    ] = None
    discipline: Annotated[
        str | None,
        typer.Option(help="mixed (prompts and decoding share steps), voted (a step is one) or split (two engines)."),
    ] = None
    data_parallel_size: Annotated[
        int | None, typer.Option("--data-parallel-size", help="Engines in processes of their own behind one front.")
    ] = None
    tensor_parallel_size: Annotated[
        int | None, typer.Option("--tensor-parallel-size", help="Processes that share every matrix of a dense model.")
    ] = None
    expert_parallel: Annotated[
        bool, typer.Option("--expert-parallel", help="Spread a mixture's experts over the engines of a voted group.")
    ] = False
    encoder_process: Annotated[
        bool, typer.Option("--encoder-process", help="Encode pictures in a process of its own, beside the engine.")
    ] = False
    config: Annotated[
        Path | None, typer.Option(help="TOML file with any engine setting (docs/settings.md lists them).")
    ] = None
    record: Annotated[Path | None, typer.Option(help="Write a flight recording of every step to this file.")] = None
    offline: Annotated[bool, typer.Option("--offline", help="Never touch the network.")] = False

    def resolve(self) -> EngineConfig:
        """Raises ConfigError naming the setting."""
        settings: dict[str, Any] = {
            "model": self.model,
            "dtype": self.dtype,
            "backend": self.backend,
            "num_threads": self.threads,
            "pinning": self.pinning,
            "graphs": self.graphs,
            "kv_memory": given_size("kv_memory", self.kv_memory),
            "kv_dtype": self.kv_dtype,
            "kv_store": self.kv_store,
            "kv_store_size": None if self.kv_store_size is None else parse_size("kv_store_size", self.kv_store_size),
            "kv_store_secret": None if self.kv_store_secret is None else str(self.kv_store_secret),
            "kv_fetch": self.kv_fetch,
            "kv_host_memory": given_size("kv_host_memory", self.kv_host_memory),
            "kv_directory": self.kv_directory,
            "max_model_len": self.max_model_len,
            "prefill_keep": self.prefill_keep,
            "deterministic": self.deterministic or None,
            "discipline": self.discipline,
            "data_parallel_size": self.data_parallel_size,
            "tensor_parallel_size": self.tensor_parallel_size,
            "expert_parallel": self.expert_parallel or None,
            "encoder_process": self.encoder_process or None,
            "record": None if self.record is None else str(self.record),
            "speculation": self.speculation,
            "draft_model": self.draft_model,
            "max_drafts": self.max_drafts,
            "speculation_guard": self.speculation_guard,
            "offline": self.offline or None,
        }
        return resolve(settings, self.config)


@dataclasses.dataclass(frozen=True)
class SamplingFlags:
    """How to draw tokens. The command line is greedy unless told otherwise: the same command, the same answer."""

    max_tokens: Annotated[
        int | None, typer.Option(help="Most tokens to generate; 0: as many as the context holds.")
    ] = 256
    temperature: Annotated[float, typer.Option(help="0 is greedy; higher is more varied.")] = 0.0
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest ids that add up to this share.")] = 1.0
    top_k: Annotated[int, typer.Option(help="Draw from this many likeliest ids; 0 is off.")] = 0
    min_p: Annotated[float, typer.Option(help="Drop ids below this share of the likeliest one.")] = 0.0
    repetition_penalty: Annotated[float, typer.Option(help="Above 1 discourages repeated ids.")] = 1.0
    seed: Annotated[int | None, typer.Option(help="Makes drawing repeatable.")] = None
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; may be given several times.")] = None
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the end-of-text token.")] = False

    def params(self) -> SamplingParams:
        """Raises InvalidRequest naming the field, before any model is loaded."""
        params = SamplingParams(
            max_tokens=self.max_tokens or None,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed,
            stop=tuple(self.stop) if self.stop else None,
            ignore_eos=self.ignore_eos,
        )
        params.check(ANY_VOCABULARY)
        return params


@dataclasses.dataclass(frozen=True)
class ReportFlags:
    """How a command tells what it did."""

    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON on stdout.")] = False
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more on stderr.")] = False
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where an error came from.")] = False


def given_size(field: str, text: str | None) -> int | None:
    """As ``parse_size``; None for what was not given."""
    return None if text is None else parse_size(field, text)


def flagged(command: Callable[..., None]) -> Callable[..., None]:
    """Lets a command take whole groups: each parameter whose type is a dataclass becomes that class's options."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}

    @functools.wraps(command)
    def ungrouped(**given: Any) -> None:
        for name, group in groups.items():
            values = {field.name: given.pop(field.name) for field in dataclasses.fields(group)}
            given[name] = group(**values)
        command(**given)

    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name in groups:
            parameters += _options(groups[parameter.name])
        else:
            parameters.append(parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY))
    ungrouped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    ungrouped.__annotations__ = {p.name: p.annotation for p in parameters}
    del ungrouped.__wrapped__
    return ungrouped


def _options(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in dataclasses.fields(group)
    ]
