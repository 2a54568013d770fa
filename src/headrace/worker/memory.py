"""How many KV blocks this machine can hold, said in words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.config import EngineConfig, kv_format
from headrace.contract.errors import ConfigError
from headrace.contract.layout import Layout

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class PoolSize:
    """``num_blocks`` counts the null block. ``words`` says where the number comes from."""

    num_blocks: int
    block_bytes: int
    words: str


def free_memory_bytes(proc: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that can be taken without swapping: the kernel's estimate, or what the control group leaves if less.

    Pages of files count as used in a group, but the kernel drops them when memory is asked for.
    """
    fields = dict(line.split(":", 1) for line in proc.read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        if limit != "max":
            used = int((cgroup / "memory.current").read_text()) - _file_pages(cgroup / "memory.stat")
            available = min(available, int(limit) - used)
    except (OSError, ValueError):
        pass
    return max(0, available)


def _file_pages(memory_stat: Path) -> int:
    """Bytes of file pages in a control group that nothing keeps from being dropped."""
    fields = dict(line.split(" ", 1) for line in memory_stat.read_text().splitlines())
    return sum(int(fields.get(name, 0)) for name in ("inactive_file", "active_file"))


def size_pool(layout: Layout, config: EngineConfig, max_model_len: int, free_bytes: int) -> PoolSize:
    """Blocks for the memory budget, at most what ``max_seqs`` sequences of full length could use.

    Raises ConfigError when not even one sequence of a few blocks fits.
    """
    cache = config.cache
    block_bytes = layout.block_bytes(cache.block_size, kv_format(config))
    budget = cache.kv_memory if cache.kv_memory is not None else int(free_bytes * cache.kv_memory_fraction)
    per_sequence = len(layout.groups) * -(-max_model_len // cache.block_size)
    useful = per_sequence * config.scheduler.max_seqs + 1
    num_blocks = min(budget // block_bytes, useful)
    least = min(2 * len(layout.groups), per_sequence) + 1  # two blocks a group, or one that holds any sequence whole
    if num_blocks < least:
        raise ConfigError(
            "kv_memory",
            f"{budget / MIB:.1f} MiB hold {budget // block_bytes} blocks of {block_bytes / MIB:.2f} MiB; "
            f"at least {least} are needed. Give more memory or a smaller block_size",
        )
    source = "as configured" if cache.kv_memory is not None else f"{cache.kv_memory_fraction:.0%} of free memory"
    limit = " (all that max_seqs sequences can use)" if num_blocks == useful else ""
    words = (
        f"KV pool: {num_blocks - 1} blocks of {cache.block_size} tokens, {num_blocks * block_bytes / MIB:.0f} MiB, "
        f"{source}{limit}; room for {(num_blocks - 1) * cache.block_size // len(layout.groups)} tokens"
    )
    return PoolSize(int(num_blocks), block_bytes, words)
