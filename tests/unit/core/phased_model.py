"""The phased discipline in plain Python: prompt and decode planners of a NORMAL engine, forks, verdicts.

Written from the description of the discipline, not from its C++ source: the real scheduler is held against it. Drafts,
media, predicted time and context parallelism are not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blocks_model import Knobs, Seq
from planner_model import PlannerModel, SliceModel
from pool_model import NULL

TOO_LONG, NEVER_FITS = 0, 1


@dataclass(frozen=True)
class PhasedKnobs(Knobs):
    min_slice: int = 1
    max_sum_keys: int = 0


@dataclass
class PhasedSeq(Seq):
    """``shares``: its last block is its sibling's too, and must be cloned before it writes."""

    checkpoints: tuple[int, ...] = ()
    shares: bool = False


@dataclass
class Cut:
    """A slice being cut. ``reason`` is what bit last."""

    q: int
    reason: str = ""
    short_of_blocks: bool = False

    def at_most(self, most: int, reason: str) -> None:
        if self.q > most:
            self.q, self.reason = max(0, most), reason


class PhasedModel(PlannerModel):
    """As PlannerModel, with a third place: prompted."""

    knobs: PhasedKnobs

    def __init__(self, knobs: PhasedKnobs) -> None:
        super().__init__(knobs)
        self.prompted: list[Seq] = []
        self.ignored: list[tuple[int, int]] = []
        self.clones: list[int] = []

    def add(self, id: int, prompt: list[int], **fields: Any) -> None:
        seq = PhasedSeq(id, prompt, tables=[[] for _ in self.knobs.groups], tokens=list(prompt), **fields)
        self.seqs[id] = seq
        self._wait(seq, at_head=False)

    def fork(self, parent_id: int, id: int, prompt: list[int]) -> None:
        parent, size = self.seqs[parent_id], self.knobs.block_size
        shared = len(prompt) - 1
        tables = [table[: -(-shared // size)] for table in parent.tables]
        names = ("max_tokens", "priority", "arrival", "reads_cache", "checkpoints")
        same = {name: getattr(parent, name) for name in names}
        child = PhasedSeq(id, prompt, tables=tables, tokens=list(prompt), **same)
        child.num_computed, child.shares = shared, shared % size != 0
        self.blocks.pool.touch(block for table in tables for block in table)
        self.seqs[id] = child
        self.prompted.append(child)

    def abort(self, id: int) -> None:
        seq = self.seqs.pop(id)
        self.blocks.free(seq)
        next(place for place in (self.running, self.prompted, self.waiting) if seq in place).remove(seq)

    def holding(self) -> list[Seq]:
        return self.running + self.prompted + [seq for seq in self.waiting if seq.num_computed]

    def fail(self) -> None:
        """Prompted and half-prefilled sequences may be in the step too."""
        ids = {planned.id for _, slices in self.steps for planned in slices}
        fenced = [block for blocks in self.fenced.values() for block in blocks]
        for blocks in self.fenced.values():
            blocks.clear()
        for block in fenced:
            self.blocks.pool.forget(block)
        for seq in reversed(self.holding()):
            if seq.id in ids:
                self._preempt(seq)
        for id in ids & self.seqs.keys():
            self.seqs[id].deliver = False
        step, slices = self.steps.pop(0)
        del self.fenced[step]
        for planned in slices:
            self._absorb(planned, step, 0, [])

    # -- both kinds ------------------------------------------------------------------------------------------

    def plan_kind(self, prefill: bool, companion: bool) -> tuple[list[SliceModel], bool]:
        """The slices, and whether there is a step."""
        self.tokens_left, self.inputs_left = self.knobs.token_budget, self.knobs.input_budget
        self.keys_left = self.knobs.max_sum_keys or 10**9
        self.fenced[self.next_step], self.clones = [], []
        self._sweep()
        slices = self._prefill() if prefill else self._decode()
        self._sweep()
        if slices or companion:
            self.steps.append((self.next_step, slices))
            self.next_step += 1
        return slices, bool(slices) or companion

    def _sweep(self) -> None:
        for seq in self.waiting.copy():
            reason = self._verdict(seq)
            if reason is not None:
                self.ignored.append((seq.id, reason))
                self.abort(seq.id)

    def _verdict(self, seq: Seq) -> int | None:
        if len(seq.prompt) >= self.knobs.max_model_len:
            return TOO_LONG
        limit = seq.limit(self.knobs.max_model_len) + self.knobs.lookahead
        too_wide = self.blocks.peak(limit) > self.knobs.num_blocks - 1
        too_deep = 0 < self.knobs.max_sum_keys < len(seq.tokens)
        return NEVER_FITS if too_wide or too_deep else None

    def _preempt(self, seq: Seq) -> None:
        """Who waits already keeps its place."""
        if seq not in self.waiting:
            (self.running if seq in self.running else self.prompted).remove(seq)
            self._wait(seq, at_head=True)
        self.blocks.free(seq)
        for flight in seq.flights:
            flight.stale = True
        seq.num_computed, seq.num_promised, seq.num_stale = 0, 0, seq.num_in_flight
        seq.deliver, seq.shares = True, False
        self.num_preemptions += 1

    # -- prompts ---------------------------------------------------------------------------------------------

    def _prefill(self) -> list[SliceModel]:
        slices: list[SliceModel] = []
        for seq in self.waiting.copy():
            if self.tokens_left <= 0:
                break
            if not seq.ready or seq.num_stale:
                continue
            if not seq.num_computed and len(self.holding()) >= self.knobs.max_seqs:
                break
            cut, start, tables, reserve = self._cut(seq)
            while cut.q == 0 and cut.short_of_blocks and (other := self._yielding(seq, slices)):
                self._preempt(other)
                cut, start, tables, reserve = self._cut(seq)
            if cut.q == 0:
                break
            assert self.blocks.allocate(seq, start, cut.q, tables, reserve) == 0
            seq.num_computed = start
            self._charge(cut.q, self.knobs.draft_slots)
            self.keys_left -= start + cut.q
            slices.append(self._settle(seq, cut.q, 0))
            if not slices[-1].samples:
                break
            self.waiting.remove(seq)
            self.prompted.append(seq)
        return slices

    def _yielding(self, seq: Seq, slices: list[SliceModel]) -> Seq | None:
        """While nothing decodes, the last half-prefilled one gives back what the head lacks."""
        if slices or self.running or self.prompted:
            return None
        return next((other for other in reversed(self.waiting) if other.num_computed and other is not seq), None)

    def _cut(self, seq: Seq) -> tuple[Cut, int, list[list[int]], int]:
        fresh = seq.num_computed == 0
        start, tables = self.blocks.hit(seq) if fresh else (seq.num_computed, seq.tables)
        protect = fresh and bool(self.holding())
        reserve = self.knobs.watermark_blocks if protect else 0
        need = len(seq.tokens) - start
        cut = Cut(need)
        cut.at_most(self.knobs.long_prefill_threshold or need, "threshold")
        cut.at_most(self.tokens_left, "tokens")
        cut.at_most(self.inputs_left - self.knobs.draft_slots, "inputs")
        cut.at_most(self.keys_left - start, "keys")
        ahead = [position - start for position in seq.checkpoints if position > start]
        cut.at_most(min(ahead, default=need), "checkpoint")
        before = cut.q
        fitting = [q for q in range(1, cut.q + 1) if not self._missing(seq, start, q, tables, reserve)]
        whole = protect and self.knobs.full_sequence_must_fit and not self._whole_fits(seq, tables)
        cut.at_most(0 if whole else max(fitting, default=0), "blocks")
        cut.short_of_blocks = cut.q < before
        if cut.reason != "checkpoint" and cut.q < min(need, self.knobs.min_slice):
            cut.q = 0
        return cut, start, tables, reserve

    def _whole_fits(self, seq: Seq, tables: list[list[int]]) -> bool:
        pool = self.blocks.pool
        held = sum(block != NULL and pool.refs[block] > 0 for table in tables for block in table)
        room = len(pool.queue) - self.knobs.watermark_blocks
        return self.blocks.peak(len(seq.tokens)) - held <= room

    def _missing(self, seq: Seq, start: int, q: int, tables: list[list[int]], reserve: int) -> bool:
        pool, own = self.blocks.pool, tables is seq.tables
        wanted = -(-(start + q + self.knobs.lookahead) // self.knobs.block_size)
        taken = sum(max(0, wanted - len(table)) for table in tables)
        free = len(pool.queue)
        for group, table in enumerate(tables):
            if not own:
                taken += sum(block != NULL and pool.refs[block] == 0 for block in table)
            else:  # only its own references can be given back
                passed = table[: self.blocks.first_seen(group, seq.num_valid)]
                free += sum(block != NULL and pool.refs[block] == 1 for block in passed)
        return taken > 0 and taken + reserve > free

    # -- decoding --------------------------------------------------------------------------------------------

    def _decode(self) -> list[SliceModel]:
        self._let_prompted_in()
        served = self._serve()
        served.sort(key=lambda seq: -(len(seq.tokens) + seq.num_promised))  # stable
        slices = [self._settle(seq, 1, 0) for seq in served]
        for planned in slices:
            self._charge(planned.q, self.knobs.draft_slots)
        return slices

    def _let_prompted_in(self) -> None:
        for seq in self.prompted.copy():
            if len(self.running) >= self.knobs.max_seqs:
                return
            if seq not in self.prompted or not seq.ready or seq.num_stale:
                continue
            while not self._own_last_block(seq) and not self.running and self.prompted[-1] is not seq:
                self._preempt(self.prompted[-1])
            if not seq.shares:
                self.prompted.remove(seq)
                self.running.append(seq)

    def _own_last_block(self, seq: Seq) -> bool:
        pool = self.blocks.pool
        if not seq.shares:
            return True
        if sum(pool.refs[table[-1]] > 1 for table in seq.tables) > len(pool.queue):
            return False
        for table in seq.tables:
            old = table[-1]
            if pool.refs[old] == 1:
                pool.forget(old)  # it is going to hold something else
                continue
            [table[-1]] = pool.allocate(1)
            pool.free([old])
            self.clones += [old, table[-1]]
        seq.shares = False
        return True

    def _serve(self) -> list[Seq]:
        """Shortest output first; blocks come from the longest output, which was not served yet."""
        order = sorted(self.running, key=lambda seq: len(seq.prompt) - len(seq.tokens))
        most = min(self.knobs.token_budget, self.knobs.input_budget // (1 + self.knobs.draft_slots))
        served: list[Seq] = []
        while order and len(served) < most:
            seq = order.pop()
            if min(self._need(seq), seq.limit(self.knobs.max_model_len) - 1 - seq.num_computed) <= 0:
                continue
            while self.blocks.allocate(seq, seq.num_computed, 1, seq.tables, 0):
                victim = order.pop(0) if order else seq
                self._preempt(victim)
                if victim is seq:
                    break
            else:
                served.insert(0, seq)
        return served
