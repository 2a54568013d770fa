"""Logit rules, sampling and log-probabilities on the CPU."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack

from headrace import _kernels
from headrace.kernels.ops import LogitRules, Logprobs, SampleParams


def apply_rules(logits: Tensor, rules: LogitRules) -> None:
    """logits (R, V), in place."""
    _kernels.apply_rules(to_dlpack(logits), **_arrays(rules))


def sample(logits: Tensor, params: SampleParams) -> Tensor:
    """logits (R, V) -> ids (R,) int32; -1 for a row without a finite maximum."""
    out = torch.empty(logits.shape[0], dtype=torch.int32)
    _kernels.sample(to_dlpack(logits.contiguous()), **_arrays(params), out=to_dlpack(out))
    return out


def gather_logprobs(logits: Tensor, ids: Tensor, n: int) -> Logprobs:
    """Log-softmax of logits (R, V) at ids (R,) and of the n best."""
    rows = logits.shape[0]
    result = Logprobs(
        chosen=torch.empty(rows),
        rank=torch.empty(rows, dtype=torch.int32),
        top_ids=torch.empty(rows, n, dtype=torch.int32),
        top_values=torch.empty(rows, n),
    )
    _kernels.gather_logprobs(to_dlpack(logits.contiguous()), to_dlpack(ids), **_arrays(result))
    return result


def _arrays(bundle: LogitRules | SampleParams | Logprobs) -> dict[str, Any]:
    """The fields of a bundle of tensors; the extension names its arguments after them."""
    return {field.name: to_dlpack(getattr(bundle, field.name)) for field in fields(bundle)}
