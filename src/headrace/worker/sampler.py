"""Sampler: from per-request wishes to the arrays the sampling ops take. Host side builds, device side draws.

Reported logprobs are of the raw logits: rules, penalties and temperature never touch them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headrace.contract.plan import IntArray, SequenceStart
from headrace.contract.request import SamplingParams
from headrace.contract.result import LogprobArrays
from headrace.kernels.ops import LogitRules, Logprobs, Ops, SampleParams


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One row to draw: who, its tokens so far, and the position of the token being drawn."""

    start: SequenceStart
    tokens: IntArray
    position: int


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """What the device needs to draw a step's tokens. ``rules`` None: no row changes its logits.

    ``mask`` is applied to the logits after the rules: grammars. ``settle`` (logits, params, ids) has the last word on
    the ids: drafts under rejection sampling.
    """

    params: SampleParams
    rules: LogitRules | None
    num_logprobs: int | None
    mask: Callable[[Tensor], None] | None = None
    settle: Callable[[Tensor, SampleParams, Tensor], None] | None = None


def plan_sampling(
    rows: Sequence[SampleRow],
    mask: Callable[[Tensor], None] | None = None,
    settle: Callable[[Tensor, SampleParams, Tensor], None] | None = None,
) -> SamplePlan:
    """Arrays for R rows, in order."""
    wanted = [r.start.sampling.logprobs for r in rows if r.start.sampling.logprobs is not None]
    return SamplePlan(
        params=_params(rows),
        rules=_rules(rows) if any(_has_rules(row) for row in rows) else None,
        num_logprobs=max(wanted) if wanted else None,
        mask=mask,
        settle=settle,
    )


def _floats(values: Iterable[float]) -> Tensor:
    return torch.from_numpy(np.fromiter(values, dtype=np.float32))


def _longs(values: Iterable[int]) -> Tensor:
    return torch.from_numpy(np.fromiter(values, dtype=np.int64))


def _params(rows: Sequence[SampleRow]) -> SampleParams:
    return sample_params([row.start.sampling for row in rows], [row.position for row in rows])


def sample_params(wishes: Sequence[SamplingParams], positions: Sequence[int], stream: int = 0) -> SampleParams:
    """Arrays for draws at these positions. ``stream`` changes the noise."""
    top_k = np.fromiter((max(0, w.top_k) for w in wishes), dtype=np.int32)
    return SampleParams(
        temperature=_floats(w.temperature for w in wishes),
        top_k=torch.from_numpy(top_k),
        top_p=_floats(w.top_p for w in wishes),
        min_p=_floats(w.min_p for w in wishes),
        seed=_longs((w.seed or 0) ^ stream for w in wishes),
        position=_longs(positions),
    )


def _has_rules(row: SampleRow) -> bool:
    w = row.start.sampling
    penalties = w.repetition_penalty != 1.0 or w.presence_penalty != 0.0 or w.frequency_penalty != 0.0
    return bool(penalties or w.logit_bias or w.allowed_token_ids or w.banned_token_ids or _too_early_ids(row))


def is_plain_greedy(start: SequenceStart) -> bool:
    """Whether every token of this sequence is the lowest id of its largest logits, and nobody asks for more."""
    w = start.sampling
    shaped = w.repetition_penalty != 1.0 or w.presence_penalty != 0.0 or w.frequency_penalty != 0.0 or w.min_tokens
    listed = w.logit_bias or w.allowed_token_ids or w.banned_token_ids
    return not (w.temperature > 0 or w.logprobs is not None or shaped or listed or start.grammar is not None)


def _too_early_ids(row: SampleRow) -> list[int]:
    """Ids that would end the sequence before ``min_tokens``."""
    w = row.start.sampling
    if len(row.tokens) - row.start.prompt_len >= w.min_tokens:
        return []
    eos = () if w.ignore_eos else row.start.eos_ids
    return sorted({*eos, *(w.stop_token_ids or ())})


class _Ragged:
    """Rows of ids with an offsets array, built up row by row."""

    def __init__(self) -> None:
        self._rows: list[np.ndarray] = []

    def add(self, ids: Sequence[int] | IntArray | None) -> None:
        self._rows.append(np.asarray(ids if ids is not None else (), dtype=np.int32))

    def tensors(self) -> tuple[Tensor, Tensor]:
        """(offsets (R+1,), flat ids)."""
        offsets = np.cumsum([0, *(len(row) for row in self._rows)], dtype=np.int32)
        flat = np.concatenate(self._rows) if self._rows else np.empty(0, np.int32)
        return torch.from_numpy(offsets), torch.from_numpy(flat)


def _biases(row: SampleRow) -> dict[int, float]:
    w = row.start.sampling
    bias = {int(k): float(v) for k, v in (w.logit_bias or {}).items()}
    bias.update((int(token), float("-inf")) for token in w.banned_token_ids or ())
    return bias


def _rules(rows: Sequence[SampleRow]) -> LogitRules:
    bias, allow, prompt, output, ban = (_Ragged() for _ in range(5))
    bias_values: list[float] = []
    for row in rows:
        w = row.start.sampling
        biases = _biases(row)
        bias.add(list(biases))
        bias_values += biases.values()
        allow.add(w.allowed_token_ids)
        penalised = w.repetition_penalty != 1.0 or w.presence_penalty != 0.0 or w.frequency_penalty != 0.0
        prompt.add(row.tokens[: row.start.prompt_len] if penalised else None)
        output.add(row.tokens[row.start.prompt_len :] if penalised else None)
        ban.add(_too_early_ids(row))
    wishes = [row.start.sampling for row in rows]
    bias_offsets, bias_ids = bias.tensors()
    allow_offsets, allow_ids = allow.tensors()
    prompt_offsets, prompt_ids = prompt.tensors()
    output_offsets, output_ids = output.tensors()
    ban_offsets, ban_ids = ban.tensors()
    return LogitRules(
        bias_offsets=bias_offsets,
        bias_ids=bias_ids,
        bias_values=_floats(bias_values),
        allow_offsets=allow_offsets,
        allow_ids=allow_ids,
        prompt_offsets=prompt_offsets,
        prompt_ids=prompt_ids,
        output_offsets=output_offsets,
        output_ids=output_ids,
        repetition=_floats(w.repetition_penalty for w in wishes),
        presence=_floats(w.presence_penalty for w in wishes),
        frequency=_floats(w.frequency_penalty for w in wishes),
        ban_offsets=ban_offsets,
        ban_ids=ban_ids,
    )


def draw(ops: Ops, logits: Tensor, plan: SamplePlan) -> tuple[Tensor, LogprobArrays | None]:
    """Device side: ids (R,) int32 (-1 where a row has no finite maximum) and, if asked for, raw logprobs."""
    changes = plan.rules is not None or plan.mask is not None
    shaped = logits.clone() if changes and plan.num_logprobs is not None else logits
    if plan.rules is not None:
        ops.apply_rules(shaped, plan.rules)
    if plan.mask is not None:
        plan.mask(shaped)
    ids = ops.sample(shaped, plan.params)
    if plan.settle is not None:
        plan.settle(shaped, plan.params, ids)
    if plan.num_logprobs is None:
        return ids, None
    return ids, to_arrays(ops.gather_logprobs(logits, ids.clamp(min=0), plan.num_logprobs))


def to_arrays(logprobs: Logprobs) -> LogprobArrays:
    """The same numbers as host arrays."""
    return LogprobArrays(
        logprobs.chosen.numpy(), logprobs.rank.numpy(), logprobs.top_ids.numpy(), logprobs.top_values.numpy()
    )
