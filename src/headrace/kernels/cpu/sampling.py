"""Logit rules, sampling and log-probabilities on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace import _kernels
from headrace.kernels.ops import LogitRules, Logprobs, SampleParams


def apply_rules(logits: Tensor, rules: LogitRules) -> None:
    """logits (R, V), in place."""
    _kernels.apply_rules(
        logits,
        rules.bias_offsets,
        rules.bias_ids,
        rules.bias_values,
        rules.allow_offsets,
        rules.allow_ids,
        rules.prompt_offsets,
        rules.prompt_ids,
        rules.output_offsets,
        rules.output_ids,
        rules.repetition,
        rules.presence,
        rules.frequency,
        rules.ban_offsets,
        rules.ban_ids,
    )


def sample(logits: Tensor, params: SampleParams) -> Tensor:
    """logits (R, V) -> ids (R,) int32; -1 for a row without a finite maximum."""
    out = torch.empty(logits.shape[0], dtype=torch.int32)
    _kernels.sample(
        logits.contiguous(),
        params.temperature,
        params.top_k,
        params.top_p,
        params.min_p,
        params.seed,
        params.position,
        out,
    )
    return out


def gather_logprobs(logits: Tensor, ids: Tensor, n: int) -> Logprobs:
    """Log-softmax of logits (R, V) at ids (R,) and of the n best."""
    rows = logits.shape[0]
    result = Logprobs(
        torch.empty(rows),
        torch.empty(rows, dtype=torch.int32),
        torch.empty(rows, n, dtype=torch.int32),
        torch.empty(rows, n),
    )
    _kernels.gather_logprobs(
        logits.contiguous(), ids, result.chosen, result.rank, result.top_ids, result.top_values
    )
    return result
