"""What no configuration may say, whatever the machine: types, ranges, and settings that exclude one another.

Each refusal names the setting. What depends on the machine or the model is checked where those are known.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .contract.errors import ConfigError
from .contract.layout import KV_ELEMENT_BYTES
from .contract.sizes import MAX_THREADS

if TYPE_CHECKING:
    from .config import EngineConfig

CHOICES = {
    "dtype": ("auto", "float32"),
    "backend": ("cpu", "reference"),
    "kv_dtype": ("auto", *KV_ELEMENT_BYTES),
    "kv_fetch": ("thread", "process"),
    "kv_windows": ("store", "memory"),
    "discipline": ("mixed", "voted", "split"),
    "graphs": ("none", "piecewise", "full", "full_decode_only", "full_and_piecewise"),
    "pinning": ("auto", "none", "cores"),
    "speculation": ("none", "ngram", "suffix", "draft_model", "draft_heads", "self"),
    "acceptance": ("exact", "rejection"),
}
INT32_MAX, INT64_MAX = (1 << 31) - 1, (1 << 63) - 1
BYTE_COUNTS = ("kv_memory", "grammar_cache", "kv_store_size")
MIN_STORE_BYTES = 1 << 20
MOST_DRAFTS = 64
MOST_MEMORY = 1 << 22  # tokens; each costs some hundred bytes
MAX_RANKS = 64
MAX_SPARES = 1024
MAX_WINDOW = 10_000  # steps; each takes 8 bytes per layer and expert
MAX_WAIT_S = 86_400.0  # a day; the clocks below overflow long before infinity


def _require(condition: bool, name: str, reason: str) -> None:
    if not condition:
        raise ConfigError(name, reason)


def _check_types(section: Any) -> None:
    for f in dataclasses.fields(section):
        value, kind = getattr(section, f.name), str(f.type)
        if f.name in CHOICES:
            _check_choice(f.name, value)
            continue
        if value is None and "None" in kind:
            continue
        wanted = {"bool": bool, "int": int, "float": (int, float), "str": str}[kind.split(" ")[0]]
        exact = isinstance(value, wanted) and not (isinstance(value, bool) and wanted is not bool)  # type: ignore[arg-type]
        _require(exact, f.name, f"must be {kind.split(' ')[0]}, got {value!r}")
        if wanted is int:  # the core counts in 32 bits, memory in 64
            most = INT64_MAX if f.name in BYTE_COUNTS else INT32_MAX
            _require(-most <= value <= most, f.name, f"must not exceed {most}")
        _require(wanted is not str or "\0" not in value, f.name, "must not hold a zero byte")


def _check_choice(name: str, value: object) -> None:
    *others, last = CHOICES[name]
    _require(value in CHOICES[name], name, f"must be {', '.join(others)} or {last}, got {value!r}")


def sections_of(config: EngineConfig) -> list[Any]:
    return [getattr(config, section.name) for section in dataclasses.fields(config)]


def check(config: EngineConfig) -> None:
    """Refuses values that cannot work on any machine. Raises ConfigError naming the setting."""
    for section in sections_of(config):
        _check_types(section)
    _check_model(config)
    _check_cache(config)
    _check_scheduler(config)
    _check_disciplines(config)
    _check_runtime(config)
    _check_speculation(config)


def _check_model(config: EngineConfig) -> None:
    longest = config.model.max_model_len
    _require(longest is None or longest >= 2, "max_model_len", "must be at least 2")
    _check_skipping(config)


def _check_skipping(config: EngineConfig) -> None:
    name, keep = "prefill_keep", config.model.prefill_keep
    if keep is None:
        return
    _require(keep >= 1, name, "must be at least 1")
    _require(config.scheduler.discipline != "split", name, "does not go with the split discipline")
    _require(not config.group.expert_parallel, name, "does not go with expert_parallel: all ranks compute all layers")
    _require(config.cache.kv_store in ("auto", "off"), name, "does not go with a KV store: skipped rows leave holes")


def _check_cache(config: EngineConfig) -> None:
    _require(1 <= config.cache.block_size <= 1024, "block_size", "must lie between 1 and 1024")
    _require(0 < config.cache.kv_memory_fraction < 1, "kv_memory_fraction", "must lie between 0 and 1")
    kv_memory = config.cache.kv_memory
    _require(kv_memory is None or kv_memory > 0, "kv_memory", "must be positive")
    size = config.cache.kv_store_size
    _require(bool(config.cache.kv_store), "kv_store", "must be a folder, off or auto")
    _require(size is None or size >= MIN_STORE_BYTES, "kv_store_size", f"must be at least {MIN_STORE_BYTES}")
    _check_host_tier(config)
    _require(0 <= config.cache.watermark < 0.5, "watermark", "must lie between 0 and 0.5")


def _check_host_tier(config: EngineConfig) -> None:
    cache, schemes = config.cache, ("tcp://", "ipc://")
    _require((cache.kv_host_memory or 0) >= 0, "kv_host_memory", "must not be negative")
    _require((cache.kv_directory or schemes[0]).startswith(schemes), "kv_directory", "must be tcp://HOST:PORT")
    listen = cache.kv_host_listen
    named = listen.startswith(schemes) and not listen.startswith(("tcp://*", "tcp://0.0.0.0", "tcp://[::]"))
    _require(named, "kv_host_listen", "must be an address of this machine that others can reach, tcp://HOST:PORT")


def _check_scheduler(config: EngineConfig) -> None:
    _require(1 <= config.scheduler.token_budget <= 1 << 20, "token_budget", "must lie between 1 and 1048576")
    _require(1 <= config.scheduler.max_seqs <= 1 << 16, "max_seqs", "must lie between 1 and 65536")
    _require(config.scheduler.long_prefill_threshold >= 0, "long_prefill_threshold", "must not be negative")
    _require(config.scheduler.max_waiting >= 1, "max_waiting", "must be at least 1")


def _check_runtime(config: EngineConfig) -> None:
    threads, day = config.runtime.num_threads, f"must be positive, {MAX_WAIT_S:g} at most"
    _require(threads is None or 1 <= threads <= MAX_THREADS, "num_threads", f"must lie between 1 and {MAX_THREADS}")
    _require(0 < config.runtime.step_timeout_s <= MAX_WAIT_S, "step_timeout_s", day)
    encoders, wait_s = config.runtime.encoder_threads, config.runtime.encoder_timeout_s
    _require(1 <= encoders <= MAX_THREADS, "encoder_threads", f"must lie between 1 and {MAX_THREADS}")
    _require(0 < wait_s <= MAX_WAIT_S, "encoder_timeout_s", day)
    _require(1 <= config.grammar.grammar_threads <= 256, "grammar_threads", "must lie between 1 and 256")
    _require(0 < config.grammar.grammar_timeout_s <= MAX_WAIT_S, "grammar_timeout_s", day)
    _require(config.grammar.grammar_cache >= 0, "grammar_cache", "must not be negative")


def _check_speculation(config: EngineConfig) -> None:
    wanted, budget = config.speculation, config.scheduler.token_budget
    _require(1 <= wanted.max_drafts <= MOST_DRAFTS, "max_drafts", f"must lie between 1 and {MOST_DRAFTS}")
    _require(1 <= wanted.min_match <= wanted.max_match, "min_match", "must lie between 1 and max_match")
    _require(0 <= wanted.cost_lifetime_s <= MAX_WAIT_S, "cost_lifetime_s", "must lie between 0 and a day")
    drafted, given = wanted.speculation == "draft_model", wanted.draft_model is not None
    _require(given or not drafted, "draft_model", "is missing: speculation draft_model needs to know which model")
    reason = f"is for speculation draft_model, not for {wanted.speculation}: change that, or leave this out"
    _require(drafted or not given, "draft_model", reason)
    _require(wanted.draft_layers >= 1, "draft_layers", "must be at least 1")
    _require(0 <= wanted.suffix_memory <= MOST_MEMORY, "suffix_memory", f"must lie between 0 and {MOST_MEMORY}")
    _require(wanted.max_match <= 32, "max_match", "must be at most 32")
    if wanted.speculation != "none":
        _require(wanted.max_drafts < budget, "max_drafts", f"and one more row must fit a step's {budget} tokens")


def _check_disciplines(config: EngineConfig) -> None:
    limits = config.scheduler
    phased = limits.discipline != "mixed"
    _require(not (phased and limits.priority), "priority", "only the mixed discipline serves by priority")
    _require(limits.all_interval >= 1, "all_interval", "must be at least 1")
    _require(limits.any_interval >= 1, "any_interval", "must be at least 1")
    _require(0 < limits.kv_limit <= 1, "kv_limit", "must lie between 0 and 1")
    size = config.group.data_parallel_size
    split_alone = limits.discipline != "split" or size == 1
    _require(split_alone, "data_parallel_size", "the split discipline has two engines of its own; leave it out")
    _require(1 <= size <= MAX_RANKS, "data_parallel_size", f"must lie between 1 and {MAX_RANKS}")
    _check_experts(config)
    _check_tensor(config)


def _check_tensor(config: EngineConfig) -> None:
    name, size = "tensor_parallel_size", config.group.tensor_parallel_size
    _require(1 <= size <= MAX_RANKS, name, f"must lie between 1 and {MAX_RANKS}")
    if size == 1:
        return
    _require(config.group.data_parallel_size == 1, name, "does not go with data_parallel_size")
    _require(config.scheduler.discipline != "split", name, "does not go with the split discipline")
    _require(config.speculation.speculation == "none", name, "does not go with speculation")
    words = "does not go with a KV store: blocks of a rank hold its heads only"
    _require(config.cache.kv_store in ("auto", "off"), name, words)


def _check_experts(config: EngineConfig) -> None:
    group = config.group
    _require(0 <= group.expert_spares <= MAX_SPARES, "expert_spares", f"must lie between 0 and {MAX_SPARES}")
    _require(group.rebalance_interval >= 0, "rebalance_interval", "must not be negative")
    _require(1 <= group.rebalance_window <= MAX_WINDOW, "rebalance_window", f"must lie between 1 and {MAX_WINDOW}")
    late = group.rebalance_interval in range(1, group.rebalance_window)
    _require(not late, "rebalance_window", "must not exceed rebalance_interval: steps are forgotten in between")
    if not group.expert_parallel:
        return
    shared = "ranks wait for each other's rows inside a step"
    voted = config.scheduler.discipline == "voted"
    _require(voted, "expert_parallel", f"{shared}: it needs the voted discipline")
    _require(group.data_parallel_size > 1, "expert_parallel", "needs a data_parallel_size of 2 or more")
    drafts = config.speculation.speculation != "none" and config.speculation.speculation_guard
    words = f"{shared}, none can measure what drafts cost: set speculation_guard to false (--no-speculation-guard)"
    _require(not drafts, "expert_parallel", words)
