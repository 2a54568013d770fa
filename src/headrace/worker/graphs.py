"""Step graphs: which steps run as captured programs, and the captures themselves.

Two things differ: the *policy* that was asked for and the *mode* a step ran in. The policy names a mode for steps that
only decode and one for all others; what the attention backend cannot capture is downgraded, once, in words; a step
larger than every captured size runs eagerly. The mode of each step is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.contract.batch import PackedBatch
from headrace.contract.errors import ConfigError
from headrace.contract.plan import GraphMode
from headrace.kernels.capability import attention_capture
from headrace.kernels.capture import Recording, Sizes, zeros
from headrace.kernels.ops import Ops
from headrace.models.context import ForwardContext, GroupIndex, LayerKV, Model

# policy -> (mode of steps that only decode, mode of all others)
POLICIES: dict[str, tuple[GraphMode, GraphMode]] = {
    "none": (GraphMode.NONE, GraphMode.NONE),
    "piecewise": (GraphMode.PIECEWISE, GraphMode.PIECEWISE),
    "full": (GraphMode.FULL, GraphMode.FULL),
    "full_decode_only": (GraphMode.FULL, GraphMode.NONE),
    "full_and_piecewise": (GraphMode.FULL, GraphMode.PIECEWISE),
}


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """A policy settled for one backend. ``words`` reports what it came to."""

    decode: GraphMode
    mixed: GraphMode
    words: str


def settle_policy(policy: str, backend: str) -> GraphPlan:
    """The policy, no mode above what the backend's attention can be captured into. Raises ConfigError."""
    if policy not in POLICIES:
        raise ConfigError("graphs", f"{policy!r} is unknown; choose one of {', '.join(POLICIES)}")
    best = attention_capture(backend)
    asked = POLICIES[policy]
    decode, mixed = (min(mode, best) for mode in asked)
    words = f"step graphs: {decode.name.lower()} for decoding, {mixed.name.lower()} otherwise"
    if (decode, mixed) != asked:
        words += f" (policy {policy}, downgraded: {backend} attention captures {best.name.lower()} at most)"
    return GraphPlan(decode, mixed, words)


class StepGraph:
    """One captured forward for steps up to a size, and two heads: logits, or the ids that greedy rows draw."""

    def __init__(
        self, model: Model, ops: Ops, kv: Sequence[LayerKV], mode: GraphMode, tokens: int, logits: int
    ) -> None:
        self.tokens = tokens
        self._logits_rows = logits
        groups = [GroupIndex(zeros(logits, 1), zeros(tokens)) for _ in model.kv_layout.groups]
        ids, positions, starts, lens, rows = (
            zeros(tokens),
            zeros(tokens),
            zeros(logits + 1),
            zeros(logits),
            zeros(logits),
        )
        tables = [tensor for group in groups for tensor in (group.block_table, group.slots)]
        self._body = Recording(tokens, logits, [ids, positions, starts, lens, *tables])
        self._logits_head, self._greedy_head = (Recording(tokens, logits, [rows]) for _ in range(2))
        used = self._body.eager_attention(ops) if mode == GraphMode.PIECEWISE else ops
        context = ForwardContext(used, ids, positions, starts, lens, groups, kv)
        with torch.inference_mode():
            with self._body.capturing():
                self._hidden = model.forward(context)
            with self._logits_head.capturing():
                self._logits = model.logits(ops.gather_rows(self._hidden, rows))
            with self._greedy_head.capturing():
                self._ids = model.greedy_ids(ops.gather_rows(self._hidden, rows))

    def fits(self, num_tokens: int, num_logits: int) -> bool:
        return num_tokens <= self.tokens and num_logits <= self._logits_rows

    def run(self, context: ForwardContext, rows: Tensor, greedy: bool = False) -> tuple[Tensor, Tensor]:
        """(hidden (T, D), logits (R, V), or with ``greedy`` ids (R,)): views that the next run overwrites."""
        sizes, inputs = _as_replayed(context, rows)
        self._body.run(sizes, inputs)
        (self._greedy_head if greedy else self._logits_head).run(sizes, [rows])
        return self._hidden[: sizes.tokens], (self._ids if greedy else self._logits)[: sizes.logits]

    def timed_run(self, context: ForwardContext, rows: Tensor) -> list[tuple[str, float]]:
        """Runs a greedy step of a FULL graph; what each call is and the seconds it took."""
        sizes, inputs = _as_replayed(context, rows)
        return self._body.timed_run(sizes, inputs) + self._greedy_head.timed_run(sizes, [rows])


def _as_replayed(context: ForwardContext, rows: Tensor) -> tuple[Sizes, list[Tensor]]:
    """A step's sizes, and its body's inputs in the order in which they were declared."""
    tables = [tensor for group in context.groups for tensor in (group.block_table, group.slots)]
    inputs = [context.input_ids, context.positions, context.query_start_loc, context.seq_lens, *tables]
    width = context.groups[0].block_table.shape[1]
    return Sizes(len(context.input_ids), len(rows), len(context.seq_lens), width), inputs


class Graphs:
    """Captures on first use, by mode and size; says which mode each step ran in."""

    def __init__(
        self, model: Model, ops: Ops, kv: Sequence[LayerKV], plan: GraphPlan, sizes: Sequence[int], max_logits: int
    ) -> None:
        self._model, self._ops, self._kv = model, ops, kv
        self._sizes = sorted(sizes)
        self._max_logits = max_logits
        self._captured: dict[tuple[GraphMode, int], StepGraph] = {}
        self.plan = plan
        self.modes: Counter[GraphMode] = Counter()

    def find(self, batch: PackedBatch, num_logits: int) -> StepGraph | None:
        """The graph for this step, or None for an eager one."""
        num_tokens, num_slices = len(batch.input_ids), len(batch.seq_lens)
        mode = self.plan.decode if num_tokens == num_slices else self.plan.mixed
        size = next((s for s in self._sizes if s >= num_tokens), None)
        if mode == GraphMode.NONE or size is None or num_logits > self._max_logits:
            self.modes[GraphMode.NONE] += 1
            return None
        self.modes[mode] += 1
        return self._capture(mode, size)

    def _capture(self, mode: GraphMode, size: int) -> StepGraph:
        key = mode, size
        if key not in self._captured:
            logits = self._max_logits + (self._max_logits == size)  # the two capacities must differ
            self._captured[key] = StepGraph(self._model, self._ops, self._kv, mode, size, logits)
        return self._captured[key]
