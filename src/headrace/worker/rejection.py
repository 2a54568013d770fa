"""Rejection sampling: which sampled drafts stand, and what is drawn in place of the first that does not.

A draft d drawn from q is accepted with probability min(1, p(d) / q(d)); else a token is drawn from the positive part of
p - q (Leviathan, Kalman, Matias, "Fast inference from transformers via speculative decoding", 2023). So each emitted
token has the target's distribution p. It needs the draft's whole distribution; a draft that is the only one proposed
needs none: for it the target's own draw is the same rule, and that has been done before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from headrace.kernels.ops import SampleParams
from headrace.kernels.reference.noise import gumbel, philox, uniform
from headrace.kernels.reference.sampling import distribution
from headrace.speculation.drafter import Draft

# Streams of noise beside the target's own: one for each use, so that none says anything of another.
DRAW, ACCEPT, RESAMPLE = 0x5DEECE66D1CE4E5B, 0x2545F4914F6CDD1D, 0x1B873593CC9E2D51


@dataclass(frozen=True, slots=True)
class DraftedRows:
    """A slice whose drafts were drawn from distributions: its first sampled row and the draft."""

    first: int
    draft: Draft


def drafted_rows(drafts: Sequence[Draft]) -> list[DraftedRows]:
    """Of the sampled slices' drafts, in order, those with distributions."""
    out, at = [], 0
    for draft in drafts:
        if draft.probs is not None and len(draft):
            out.append(DraftedRows(at, draft))
        at += len(draft) + 1
    return out


def settle(logits: Tensor, params: SampleParams, ids: Tensor, slices: Sequence[DraftedRows]) -> None:
    """``ids`` (R,) hold the target's own draws; in place, a row becomes its draft if that is accepted, and a token of
    the residual where the first is not. ``logits`` (R, V) after all rules. Rows behind a rejection stay as they are:
    nothing is emitted from them."""
    for item in slices:
        for j in range(len(item.draft)):
            row = item.first + j
            if int(ids[row]) < 0:  # no finite maximum: no distribution either
                break
            own = one_row(params, row)
            p = distribution(logits[row : row + 1], own)[0]
            token = int(item.draft.ids[j])
            accepted = _accepted(p, item.draft.probs[j], token, own)
            ids[row] = token if accepted else _residual(p, item.draft.probs[j], own)
            if not accepted:
                break


def one_row(params: SampleParams, row: int) -> SampleParams:
    """The knobs of a single row."""
    return SampleParams(*(getattr(params, f.name)[row : row + 1] for f in fields(params)))


def _accepted(p: Tensor, q: Tensor, token: int, params: SampleParams) -> bool:
    noise = uniform(philox(params.seed ^ ACCEPT, params.position, torch.zeros(1, dtype=torch.int64)))
    return float(noise) * float(q[token]) < float(p[token])


def _residual(p: Tensor, q: Tensor, params: SampleParams) -> int:
    """A token of the positive part of p - q; of p itself where rounding has left nothing of it."""
    left = (p - q).clamp_min(0.0)
    weights = left if float(left.sum()) > 0 else p
    return int((weights.log() + gumbel(params.seed ^ RESAMPLE, params.position, len(p))[0]).argmax())
