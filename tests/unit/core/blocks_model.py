"""Sequences and their blocks in plain Python: the five counts, demand, hits, release behind windows, naming.

No care for speed: a hit is found by trying every length, contents are whole token prefixes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pool_model import NULL, PoolModel

FULL, SLIDING = 0, 1


@dataclass(frozen=True)
class Knobs:
    """The settings of a scheduler, under the names its constructor has."""

    num_blocks: int = 20
    block_size: int = 4
    groups: tuple[tuple[int, int], ...] = ((FULL, 0),)
    prefix_caching: bool = True
    token_budget: int = 16
    input_budget: int = 16
    draft_slots: int = 0
    lookahead: int = 0
    max_seqs: int = 4
    max_model_len: int = 40
    long_prefill_threshold: int = 0
    watermark_blocks: int = 0
    full_sequence_must_fit: bool = True
    priority: bool = False


@dataclass
class Flight:
    """A step that is computing part of a sequence."""

    step: int
    q: int
    promised: int
    stale: bool = False


@dataclass
class Seq:
    """A sequence with the five counts spelled out."""

    id: int
    prompt: list[int]
    max_tokens: int
    priority: int
    arrival: float
    reads_cache: bool
    tables: list[list[int]]
    tokens: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_in_flight: int = 0
    num_promised: int = 0
    num_stale: int = 0
    ready: bool = True
    deliver: bool = True
    drafts: list[int] = field(default_factory=list)
    flights: list[Flight] = field(default_factory=list)

    @property
    def num_valid(self) -> int:
        return self.num_computed - (self.num_in_flight - self.num_stale)

    @property
    def rank(self) -> tuple[int, float]:
        return self.priority, self.arrival

    def limit(self, max_model_len: int) -> int:
        return min(max_model_len, len(self.prompt) + self.max_tokens)


class Blocks:
    """Blocks for sequences: demand, hits, release behind windows, naming."""

    def __init__(self, knobs: Knobs) -> None:
        self.knobs = knobs
        self.pool = PoolModel(knobs.num_blocks, knobs.prefix_caching)

    def first_seen(self, group: int, position: int) -> int:
        """The first block that a computation at ``position`` reads."""
        kind, window = self.knobs.groups[group]
        return 0 if kind == FULL else max(0, position - window + 1) // self.knobs.block_size

    def content(self, seq: Seq, block: int, group: int) -> tuple[object, ...]:
        return (group, *seq.tokens[: (block + 1) * self.knobs.block_size])

    def hit(self, seq: Seq) -> tuple[int, list[list[int]]]:
        """The longest usable prefix in tokens, and its blocks per group."""
        size = self.knobs.block_size
        if self.knobs.prefix_caching and seq.reads_cache:
            for length in range((len(seq.tokens) - 1) // size, 0, -1):
                tables = [self._usable(seq, group, length) for group in range(len(self.knobs.groups))]
                if all(table is not None for table in tables):
                    return length * size, [table for table in tables if table is not None]
        return 0, [[] for _ in self.knobs.groups]

    def _usable(self, seq: Seq, group: int, length: int) -> list[int] | None:
        first = self.first_seen(group, length * self.knobs.block_size)
        tail = [self.pool.find(self.content(seq, block, group)) for block in range(first, length)]
        return None if NULL in tail else [NULL] * first + tail

    def peak(self, num_tokens: int) -> int:
        size, slack = self.knobs.block_size, 2 * self.knobs.token_budget + self.knobs.lookahead
        total = 0
        for kind, window in self.knobs.groups:
            whole = -(-num_tokens // size)
            total += whole if kind == FULL else min(whole, -(-(window - 1 + slack) // size) + 1)
        return total

    def release_behind_windows(self, seq: Seq) -> None:
        for group, table in enumerate(seq.tables):
            for block in reversed(range(min(self.first_seen(group, seq.num_valid), len(table)))):
                self.pool.free([table[block]])
                table[block] = NULL

    def allocate(self, seq: Seq, start: int, q: int, tables: list[list[int]], reserve: int) -> int:
        """Room up to ``start + q`` and the lookahead, on top of ``tables``. Returns how many blocks are missing."""
        self.release_behind_windows(seq)
        wanted = -(-(start + q + self.knobs.lookahead) // self.knobs.block_size)
        fresh = sum(max(0, wanted - len(table)) for table in tables)
        hits = [] if tables is seq.tables else [block for table in tables for block in table]
        revived = sum(block != NULL and self.pool.refs[block] == 0 for block in hits)
        missing = fresh + revived + reserve - len(self.pool.queue)
        if fresh + revived and missing > 0:
            return missing
        self.pool.touch(hits)
        seq.tables = tables
        for table in tables:
            table += self.pool.allocate(max(0, wanted - len(table)))
        return 0

    def free(self, seq: Seq) -> None:
        for table in seq.tables:
            self.pool.free(reversed(table))
        seq.tables = [[] for _ in seq.tables]

    def name(self, seq: Seq, num_tokens: int) -> list[int]:
        named = []
        for group, table in enumerate(seq.tables):
            for block in range(min(num_tokens, len(seq.tokens)) // self.knobs.block_size):
                if table[block] != NULL and table[block] not in self.pool.names:
                    self.pool.name(table[block], self.content(seq, block, group))
                    named.append(table[block])
        return named
