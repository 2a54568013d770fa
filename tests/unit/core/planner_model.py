"""The MIXED discipline in plain Python: ledger, queues, planner and results of one engine.

Written from the description of the discipline, not from its C++ source: the real scheduler is held against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blocks_model import Blocks, Flight, Knobs, Seq
from pool_model import NULL

Chosen = tuple[Seq, int, int]  # what a running sequence may have: tokens, and drafts among them


@dataclass(frozen=True)
class SliceModel:
    """A sequence's share of a step."""

    id: int
    q: int
    num_computed: int  # before the slice
    drafts: int
    samples: bool


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
        self.preempted = self.gave_way = self.blocked = False  # in this step: anyone; the one it was for; who waits

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
        self.preempted = self.gave_way = self.blocked = False
        slices = self._plan_by_rank() if self.knobs.priority else self._plan_first_come()
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

    def _plan_first_come(self) -> list[SliceModel]:
        chosen: list[Chosen] = []
        self._plan_running(chosen, self.running)
        slices = [self._settle(*one) for one in chosen]
        return slices + self._plan_waiting(self.waiting) if not self.preempted else slices

    def _plan_by_rank(self) -> list[SliceModel]:
        """Whoever generates, then prompts, running and waiting alike, by rank; a running one before its equals."""
        chosen: list[Chosen] = []
        prompts = [seq for seq in self.running if self._need(seq) > 1 + len(seq.drafts)]
        self._plan_running(chosen, [seq for seq in self.running if seq not in prompts])
        slices, queue = [], self.waiting.copy()
        for seq in sorted(prompts, key=lambda s: s.rank):
            if self.gave_way or self.tokens_left <= 0:
                break
            better = [other for other in queue if other.rank < seq.rank]
            queue = queue[len(better) :]
            slices += self._plan_waiting(better)
            self._plan_running(chosen, [seq])
        slices += [self._settle(*one) for one in chosen]
        return slices + self._plan_waiting(queue)

    def _plan_running(self, chosen: list[Chosen], wanted: list[Seq]) -> None:
        """Adds to ``chosen``, in the order of ``wanted``; whoever gives way leaves it again."""
        for seq in wanted.copy():
            if self.gave_way or self.tokens_left <= 0:
                break
            if seq not in self.running:
                continue
            need = self._need(seq)
            q = self._clip(seq, need, seq.num_computed)
            if q <= 0:
                continue
            while self.blocks.allocate(seq, seq.num_computed, q, seq.tables, 0) > 0:
                self.preempted = True
                victim = self._victim()
                for entry in [entry for entry in chosen if entry[0] is victim]:
                    chosen.remove(entry)
                    self._charge(-entry[1], -self.knobs.draft_slots)
                self._preempt(victim)
                if victim is seq:
                    self.gave_way = True
                    return
            self._charge(q, self.knobs.draft_slots)
            chosen.append((seq, q, max(0, q - (need - len(seq.drafts)))))

    def _plan_waiting(self, wanted: list[Seq]) -> list[SliceModel]:
        slices: list[SliceModel] = []
        for seq in wanted.copy():
            if self.preempted or self.blocked:
                break
            if len(self.running) >= self.knobs.max_seqs or self.tokens_left <= 0:
                self.blocked = True
                break
            if not seq.ready or seq.num_stale:
                continue
            num_cached, tables = self.blocks.hit(seq)
            q = self._clip(seq, len(seq.tokens) - num_cached, 0)
            if q <= 0 or not self._room(seq, num_cached, q, tables):
                self.blocked = True
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
