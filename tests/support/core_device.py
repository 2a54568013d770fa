"""A real scheduler with the simplest device behind it: plans go out, results come back in order, invariants are checked
after every call. The token at a position is a function of the prompt and the position, so an output that was lost,
doubled or misplaced shows. With ``shadow=True`` the device also knows what each KV slot holds (no drafts then)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from shadow_kv import ShadowKV, prefix_hashes

from headrace._core import Scheduler

NULL = 0


def ids(*tokens: int) -> np.ndarray:
    """Token ids as the core takes them."""
    return np.array(tokens, np.int32)


def prompt(seed: int, length: int) -> list[int]:
    """Prompts of different seeds share nothing."""
    return [seed * 1000 + i for i in range(length)]


def next_token(prompt: Sequence[int], position: int) -> int:
    return 1000 + (sum(prompt) * 31 + len(prompt) * 5 + position * 7) % 900


class CoreDevice:
    """Keyword arguments are the scheduler's. Sequences are added with a prompt or, for the default one, a length."""

    def __init__(self, shadow: bool = False, **settings: Any) -> None:
        settings = {"num_blocks": 65, "block_size": 4, "max_model_len": 400} | settings
        self.core = Scheduler(**settings)
        self.kv = ShadowKV(settings["block_size"], settings.get("groups", [(0, 0)])) if shadow else None
        self.hashes: dict[int, list[int]] = {}
        self.in_flight: deque[Any] = deque()
        self.prompts: dict[int, list[int]] = {}
        self.outputs: dict[int, list[int]] = {}
        self.finishes: dict[int, int] = {}
        self.planned: Counter[int] = Counter()  # tokens computed per sequence, over all steps
        self.num_steps = 0
        self.plan_seen: Any = None

    def add(self, seq_id: int, prompt: Sequence[int] | int, **fields: Any) -> None:
        tokens = list(range(prompt)) if isinstance(prompt, int) else list(prompt)
        self.core.add(seq_id, ids(*tokens), **fields)
        self.prompts[seq_id], self.outputs[seq_id] = tokens, []
        self.finishes.pop(seq_id, None)
        if self.kv:
            seed = fields.get("keys") and id(fields["keys"])
            outputs = [next_token(tokens, len(tokens) + i) for i in range(min(fields.get("max_tokens", 16), 400))]
            self.hashes[seq_id] = prefix_hashes(seed, tokens + outputs)

    def plan(self) -> dict[int, int]:
        """Plans a step and returns its tokens per sequence; nothing is in flight for an empty one."""
        plan = self.plan_seen = self.core.plan()
        self.check()
        slices = dict(zip(plan.seq_ids.tolist(), plan.num_scheduled.tolist()))
        if slices:
            self.in_flight.append(plan)
            self.planned.update(slices)
            self.num_steps += 1
            if self.kv:
                self.kv.run(plan, self.hashes, {x: self.core.inspect(x)["blocks"] for x in slices})
        return slices

    def commit(self, emits: dict[int, list[int]] | None = None) -> Any:
        """The oldest step returns. ``emits`` replaces what sequences sample (accepted drafts included)."""
        plan = self.in_flight.popleft()
        valid, offsets, tokens = [], [0], []
        for row in self._rows(plan, emits or {}):
            valid.append(row[0])
            tokens += row[1]
            offsets.append(len(tokens))
        result = self.core.commit(plan.step, ids(*valid), ids(*offsets), ids(*tokens))
        self._take(result)
        self.check()
        return result

    def _rows(self, plan: Any, emits: dict[int, list[int]]) -> Any:
        columns = (plan.seq_ids, plan.num_scheduled, plan.num_computed, plan.num_drafts, plan.samples)
        for seq_id, q, computed, drafts, samples in zip(*(column.tolist() for column in columns)):
            first = computed + q - drafts
            sampled = emits.get(seq_id, [next_token(self.prompts[seq_id], first)]) if samples else []
            yield (q - drafts + len(sampled) - 1 if samples else q), sampled

    def _take(self, result: Any) -> None:
        for i, seq_id in enumerate(result.seq_ids.tolist()):
            new = result.tokens[result.offsets[i] : result.offsets[i + 1]].tolist()
            if new:
                self.outputs[seq_id] += new
            if result.finishes[i]:
                self.finishes[seq_id] = int(result.finishes[i])

    def fail(self) -> list[int]:
        """The oldest step did not run, so the later ones in flight read nothing sensible."""
        if self.kv:
            self.kv.lost([plan.step for plan in self.in_flight])
        alive = self.core.fail(self.in_flight.popleft().step)
        self.check()
        return alive

    def step(self) -> dict[int, int]:
        """Plans a step and lets it return."""
        slices = self.plan()
        if slices:
            self.commit()
        return slices

    def run_dry(self, overlap: bool = False, most_steps: int = 5000) -> None:
        """Until nothing is left, one step at a time or with the next one planned before each return."""
        for _ in range(most_steps):
            slices = self.plan()
            if len(self.in_flight) > (overlap and bool(slices)):
                self.commit()
            elif not slices:
                return
        raise AssertionError(f"not at rest after {most_steps} steps: {self.core.running_ids()}")

    def counts(self, seq_id: int) -> dict[str, int]:
        """The five counts."""
        seen = self.core.inspect(seq_id)
        return {
            name: seen[name] for name in ("num_tokens", "num_computed", "num_in_flight", "num_promised", "num_stale")
        }

    def notes(self, code: int) -> dict[int, int]:
        """The last plan's remarks of one kind: sequence → value."""
        plan = self.plan_seen
        rows = zip(plan.note_seqs.tolist(), plan.note_codes.tolist(), plan.note_values.tolist())
        return {seq_id: value for seq_id, kind, value in rows if kind == code}

    def check(self) -> None:
        """References equal tables, free and used make the pool, nobody waits with blocks."""
        held: Counter[int] = Counter()
        for seq_id in self.core.running_ids():
            for table in self.core.inspect(seq_id)["blocks"]:
                held.update(block for block in table if block != NULL)
        for seq_id in self.core.waiting_ids():
            assert not any(self.core.inspect(seq_id)["blocks"])
        counts = self.core.ref_counts().tolist()
        assert {block: count for block, count in enumerate(counts) if count} == dict(held)
        assert self.core.num_free_blocks + self.core.num_used_blocks == self.core.num_blocks
        assert len(held) == self.core.num_used_blocks

    def check_outputs(self) -> None:
        """Every output is what the device would say, in order, none lost."""
        for seq_id, output in self.outputs.items():
            prompt = self.prompts[seq_id]
            expected = [next_token(prompt, len(prompt) + i) for i in range(len(output))]
            assert output == expected, seq_id
