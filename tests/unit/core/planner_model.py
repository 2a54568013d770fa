"""The MIXED discipline in plain Python: ledger, blocks, queues, planner and results of one engine.

Written from the description of the discipline, not from its C++ source, with no care for speed: a hit is found by
trying every length, queues are sorted lists, contents are whole token prefixes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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


@dataclass(frozen=True)
class SliceModel:
    """A sequence's share of a step."""

    id: int
    q: int
    num_computed: int  # before the slice
    drafts: int
    samples: bool


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


class PlannerModel:
    """add, abort, plan, commit, fail: what the real scheduler does, said slowly."""

    def __init__(self, knobs: Knobs) -> None:
        self.knobs = knobs
        self.blocks = Blocks(knobs)
        self.seqs: dict[int, Seq] = {}
        self.running: list[Seq] = []
        self.waiting: list[Seq] = []
        self.steps: list[tuple[int, list[SliceModel]]] = []
        self.fenced: dict[int, list[int]] = {}
        self.next_step = 0
        self.num_preemptions = 0
        self.tokens_left = self.inputs_left = 0

    # -- calls ---------------------------------------------------------------------------------------------

    def add(self, id: int, prompt: list[int], **fields: Any) -> None:
        tables: list[list[int]] = [[] for _ in self.knobs.groups]
        seq = Seq(id, prompt, tables=tables, tokens=list(prompt), **fields)
        self.seqs[id] = seq
        self._wait(seq, at_head=False)

    def fits(self, prompt_len: int, max_tokens: int) -> bool:
        """Whether add accepts it: the pool can hold it to its end."""
        limit = min(self.knobs.max_model_len, prompt_len + max_tokens)
        return self.blocks.peak(limit + self.knobs.lookahead) <= self.knobs.num_blocks - 1

    def abort(self, id: int) -> None:
        seq = self.seqs.pop(id)
        self.blocks.free(seq)
        (self.running if seq in self.running else self.waiting).remove(seq)

    def plan(self) -> list[SliceModel]:
        self.tokens_left, self.inputs_left = self.knobs.token_budget, self.knobs.input_budget
        self.fenced[self.next_step] = []
        chosen, preempted = self._plan_running()
        slices = [self._settle(seq, q, drafts) for seq, q, drafts in chosen]
        if not preempted:
            slices += self._plan_waiting()
        if slices:
            self.steps.append((self.next_step, slices))
            self.next_step += 1
        return slices

    def commit(self, accepted: list[int], emitted: list[list[int]]) -> None:
        """The oldest step's result: per slice accepted drafts and the tokens after them."""
        step, slices = self.steps.pop(0)
        del self.fenced[step]
        for planned, num_accepted, tokens in zip(slices, accepted, emitted):
            self._absorb(planned, step, planned.drafts - num_accepted, tokens)

    def fail(self) -> None:
        """The oldest step did not run: everything in flight is void."""
        ids = {planned.id for _, slices in self.steps for planned in slices}
        for blocks in self.fenced.values():
            for block in blocks:
                self.blocks.pool.forget(block)
            blocks.clear()
        for seq in reversed(self.running.copy()):
            if seq.id in ids:
                self._preempt(seq)
        for id in ids & self.seqs.keys():
            self.seqs[id].deliver = False
        step, slices = self.steps.pop(0)
        del self.fenced[step]
        for planned in slices:
            self._absorb(planned, step, 0, [])

    # -- planning ------------------------------------------------------------------------------------------

    def _plan_running(self) -> tuple[list[tuple[Seq, int, int]], bool]:
        chosen: list[tuple[Seq, int, int]] = []
        preempted = False
        seen: set[int] = set()
        while todo := [seq for seq in self.running if seq.id not in seen]:
            seq = todo[0]
            seen.add(seq.id)
            if self.tokens_left <= 0:
                break
            need = self._need(seq)
            q = self._clip(seq, need, seq.num_computed)
            if q <= 0:
                continue
            while self.blocks.allocate(seq, seq.num_computed, q, seq.tables, 0) > 0:
                preempted = True
                victim = self._victim()
                for entry in [entry for entry in chosen if entry[0] is victim]:
                    chosen.remove(entry)
                    self._charge(-entry[1], -self.knobs.draft_slots)
                self._preempt(victim)
                if victim is seq:
                    return chosen, True
            self._charge(q, self.knobs.draft_slots)
            chosen.append((seq, q, max(0, q - (need - len(seq.drafts)))))
        return chosen, preempted

    def _plan_waiting(self) -> list[SliceModel]:
        slices = []
        for seq in self.waiting.copy():
            if len(self.running) >= self.knobs.max_seqs or self.tokens_left <= 0:
                break
            if not seq.ready or seq.num_stale:
                continue
            num_cached, tables = self.blocks.hit(seq)
            q = self._clip(seq, len(seq.tokens) - num_cached, 0)
            if q <= 0 or not self._room(seq, num_cached, q, tables):
                break
            seq.num_computed = num_cached
            self.waiting.remove(seq)
            self.running.append(seq)
            self._charge(q, self.knobs.draft_slots)
            slices.append(self._settle(seq, q, 0))
        return slices

    def _room(self, seq: Seq, num_cached: int, q: int, tables: list[list[int]]) -> bool:
        """An idle engine needs room for the slice only; else all tokens known must fit beside the watermark."""
        reserve = self.knobs.watermark_blocks if self.running else 0
        if self.knobs.full_sequence_must_fit and self.running:
            pool = self.blocks.pool
            held = sum(block != NULL and pool.refs[block] > 0 for table in tables for block in table)
            if self.blocks.peak(len(seq.tokens)) - held > len(pool.queue) - reserve:
                return False
        return self.blocks.allocate(seq, num_cached, q, tables, reserve) == 0

    def _need(self, seq: Seq) -> int:
        """Tokens to plan; none while steps in flight may already bring the sequence to its end."""
        if seq.num_promised and len(seq.tokens) + seq.num_promised >= seq.limit(self.knobs.max_model_len):
            return 0
        return len(seq.tokens) + len(seq.drafts) + seq.num_promised - seq.num_computed

    def _clip(self, seq: Seq, need: int, num_computed: int) -> int:
        bounds = [need, self.tokens_left, self.inputs_left - self.knobs.draft_slots]
        bounds.append(seq.limit(self.knobs.max_model_len) - 1 - num_computed)
        if self.knobs.long_prefill_threshold:
            bounds.append(self.knobs.long_prefill_threshold)
        return min(bounds)

    def _charge(self, q: int, draft_slots: int) -> None:
        self.tokens_left -= q
        self.inputs_left -= q + draft_slots

    def _settle(self, seq: Seq, q: int, drafts: int) -> SliceModel:
        before = seq.num_computed
        seq.drafts = seq.drafts[:drafts]
        at_end = before + q == len(seq.tokens) + drafts + seq.num_promised
        promised = 1 + drafts if at_end else 0
        seq.num_computed += q
        seq.num_in_flight += q
        seq.num_promised += promised
        seq.drafts = []
        seq.flights.append(Flight(self.next_step, q, promised))
        self.fenced[self.next_step] += self.blocks.name(seq, seq.num_computed)
        return SliceModel(seq.id, q, before, drafts, at_end)

    # -- queues --------------------------------------------------------------------------------------------

    def _wait(self, seq: Seq, at_head: bool) -> None:
        self.waiting.insert(0 if at_head else len(self.waiting), seq)
        if self.knobs.priority:
            self.waiting.sort(key=lambda s: (*s.rank, s.id))

    def _victim(self) -> Seq:
        if not self.knobs.priority:
            return self.running[-1]
        worst = max(seq.rank for seq in self.running)
        return [seq for seq in self.running if seq.rank == worst][-1]

    def _preempt(self, seq: Seq) -> None:
        self.blocks.free(seq)
        self.running.remove(seq)
        for flight in seq.flights:
            flight.stale = True
        seq.num_computed, seq.num_promised, seq.num_stale = 0, 0, seq.num_in_flight
        seq.drafts, seq.deliver = [], True
        self.num_preemptions += 1
        self._wait(seq, at_head=True)

    # -- results -------------------------------------------------------------------------------------------

    def _absorb(self, planned: SliceModel, step: int, rejected: int, tokens: list[int]) -> None:
        seq = self.seqs.get(planned.id)
        if seq is None or not seq.flights or seq.flights[0].step != step:
            return
        flight = seq.flights.pop(0)
        seq.num_in_flight -= flight.q
        if flight.stale:
            seq.num_stale -= flight.q
            ended = seq.deliver and self._append(seq, tokens)
        else:
            seq.num_computed -= rejected
            seq.num_promised -= flight.promised
            ended = self._append(seq, tokens)
            self.blocks.name(seq, seq.num_valid)
        if ended:
            self.abort(seq.id)

    def _append(self, seq: Seq, tokens: list[int]) -> bool:
        room = seq.limit(self.knobs.max_model_len) - len(seq.tokens)
        seq.tokens += tokens[:room]
        return len(seq.tokens) >= seq.limit(self.knobs.max_model_len)
