"""Hit rates of a KV store on a recorded trace: LRU, the store's own policy, the infinite cache and Belady.

A trace is one request a line with ``hash_ids``, the names of its prefix's blocks (the schema of Mooncake's open
traces). A rate is hits over all blocks asked for; a hit counts only when every block before it hits. No model, no
store and no clock take part.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from headrace.contract.errors import ConfigError
from headrace.kv.policy import Lru
from headrace.kv.shadow import CANDIDATES, AdaptiveCache

NEVER = 1 << 62
MAX_LINE_BYTES = 1 << 24
EXAMPLE = '{"timestamp": 0, "input_length": 1000, "hash_ids": [1, 2]}'

Chains = list[list[int]]


class TraceLine(msgspec.Struct):
    """One request of a trace; fields not named here are passed over."""

    hash_ids: list[int]
    timestamp: float = 0
    input_length: int = 0


class Row(msgspec.Struct, frozen=True):
    """Hit rates at one capacity (in blocks). ``switches``: (blocks seen, policy) as the shadow chose."""

    capacity: int
    lru: float
    ours: float
    belady: float
    policy: str
    switches: list[tuple[int, str]]


class TraceReport(msgspec.Struct, frozen=True):
    """``distinct`` blocks among ``blocks``; ``infinite`` is the rate of a cache that forgets nothing."""

    requests: int
    blocks: int
    distinct: int
    infinite: float
    rows: list[Row]


def read_trace(path: Path) -> Chains:
    """The chains of a trace. Raises ConfigError naming file and line."""
    decoder = msgspec.json.Decoder(TraceLine)
    chains: Chains = []
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    chains.append(_decode(decoder, path, number, line))
    except OSError as error:
        raise ConfigError("trace", f"{path}: {error.strerror}") from error
    if not any(chains):
        raise ConfigError("trace", f"{path} holds no blocks")
    return chains


def _decode(decoder: msgspec.json.Decoder[TraceLine], path: Path, number: int, line: bytes) -> list[int]:
    try:
        if len(line) > MAX_LINE_BYTES:
            raise ValueError(f"longer than {MAX_LINE_BYTES} bytes")
        return decoder.decode(line).hash_ids
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError("trace", f"{path}:{number}: {error}. A line looks so: {EXAMPLE}") from None


def simulate(chains: Chains, capacities: Sequence[int], tick: Callable[[int], None] | None = None) -> TraceReport:
    """Every cache at every capacity. ``tick`` is told each capacity when it is done."""
    total = sum(map(len, chains))
    rows = []
    for capacity in capacities:
        lru, ours = AdaptiveCache(capacity, (Lru(),)), AdaptiveCache(capacity, CANDIDATES)
        rates = [sum(cache.request(chain) for chain in chains) / total for cache in (lru, ours)]
        rate = belady(chains, capacity) / total
        rows.append(Row(capacity, rates[0], rates[1], rate, ours.policy.name, ours.switches))
        if tick is not None:
            tick(capacity)
    distinct = len({block for chain in chains for block in chain})
    return TraceReport(len(chains), total, distinct, infinite(chains) / total, rows)


def infinite(chains: Chains) -> int:
    """Hits of a cache that forgets nothing."""
    seen: set[int] = set()
    hits = 0
    for chain in chains:
        hits += next((i for i, block in enumerate(chain) if block not in seen), len(chain))
        seen.update(chain)
    return hits


def belady(chains: Chains, capacity: int) -> int:
    """Hits of who knows the future: whoever is asked for last, or never, leaves first (Belady 1966)."""
    upcoming = _next_uses(chains)
    due: dict[int, int] = {}  # block -> the request that asks for it next
    heap: list[tuple[int, int, int]] = []
    hits = 0
    for chain, nexts in zip(chains, upcoming):
        hits += next((i for i, block in enumerate(chain) if block not in due), len(chain))
        for depth in range(len(chain) - 1, -1, -1):
            due[chain[depth]] = nexts[depth]
            heapq.heappush(heap, (-nexts[depth], -depth, chain[depth]))
        while len(due) > capacity:
            when, _, block = heapq.heappop(heap)
            if due.get(block) == -when:
                del due[block]
    return hits


def _next_uses(chains: Chains) -> list[list[int]]:
    """Per block of every chain, the number of the next request that asks for it."""
    later: dict[int, int] = {}
    out: list[list[int]] = []
    for number in range(len(chains) - 1, -1, -1):
        out.append([later.get(block, NEVER) for block in chains[number]])
        later.update(dict.fromkeys(chains[number], number))
    out.reverse()
    return out
