"""Logit rules, sampling and log-probabilities in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.ops import LogitRules, Logprobs, SampleParams

from .noise import gumbel

_NEVER = float("-inf")


def apply_rules(logits: Tensor, rules: LogitRules) -> None:
    """logits (R, V), in place. Order: allow, bias, penalties, ban (see ``LogitRules``)."""
    for r, row in enumerate(logits):
        allow = _run(rules.allow_offsets, rules.allow_ids, r)
        if len(allow):
            kept = row[allow].clone()
            row.fill_(_NEVER)
            row[allow] = kept
        bias = _run(rules.bias_offsets, rules.bias_ids, r)
        row.index_add_(0, bias, _run(rules.bias_offsets, rules.bias_values, r))
        _penalise(row, rules, r)
        row[_run(rules.ban_offsets, rules.ban_ids, r)] = _NEVER


def _run(offsets: Tensor, flat: Tensor, row: int) -> Tensor:
    """One row's stretch of a ragged array; ids become int64 for indexing."""
    run = flat[int(offsets[row]) : int(offsets[row + 1])]
    return run if run.is_floating_point() else run.long()


def _penalise(row: Tensor, rules: LogitRules, r: int) -> None:
    output = _run(rules.output_offsets, rules.output_ids, r)
    seen = torch.unique(torch.cat((_run(rules.prompt_offsets, rules.prompt_ids, r), output)))
    repetition = rules.repetition[r]
    row[seen] = torch.where(row[seen] > 0, row[seen] / repetition, row[seen] * repetition)
    ids, counts = torch.unique(output, return_counts=True)
    row[ids] -= rules.frequency[r] * counts
    row[ids] -= rules.presence[r]


def sample(logits: Tensor, params: SampleParams) -> Tensor:
    """logits (R, V) -> ids (R,) int32; -1 for a row without a finite maximum.

    Logits are taken relative to the row's maximum and then divided by the temperature, so that a very low
    temperature cannot overflow.
    """
    if logits.shape[0] == 0:
        return torch.empty(0, dtype=torch.int32)
    top = logits.amax(-1)  # NaN when any entry is
    greedy = params.temperature <= 0
    z = (logits - top[:, None]) / torch.where(greedy, 1.0, params.temperature)[:, None]
    z = _filter(z, params)
    noise = gumbel(params.seed, params.position, logits.shape[1])
    drawn = _lowest_argmax(torch.where(greedy[:, None], z, z + noise))
    return torch.where(top.isfinite(), drawn, -1).to(torch.int32)


def distribution(logits: Tensor, params: SampleParams) -> Tensor:
    """Probabilities (R, V) that ``sample`` draws from, float32. Rows must have a temperature above 0."""
    z = (logits - logits.amax(-1, keepdim=True)) / params.temperature[:, None]
    filtered = (params.top_k > 0) | (params.top_p < 1) | (params.min_p > 0)
    return (_filter(z, params) if bool(filtered.any()) else z).softmax(-1)


def _lowest_argmax(x: Tensor) -> Tensor:
    """Lowest index of each row's maximum (torch.argmax promises no tie rule)."""
    ids = torch.arange(x.shape[1])
    return torch.where(x == x.amax(-1, keepdim=True), ids, x.shape[1]).amin(-1)


def _filter(z: Tensor, params: SampleParams) -> Tensor:
    """min-p, top-k, top-p, each on what the one before left; dropped ids become -inf.

    All three keep a prefix of the order (value descending, id ascending), so one sort serves them all.
    """
    order = torch.sort(z, dim=-1, descending=True, stable=True)
    weight = order.values.double().exp()  # relative to the most likely id
    keep = weight >= params.min_p.double()[:, None]
    rank = torch.arange(z.shape[1])
    k = torch.where(params.top_k > 0, params.top_k, z.shape[1])
    keep &= rank < k[:, None]
    weight = torch.where(keep, weight, 0.0)
    before = weight.cumsum(-1) - weight
    p = torch.where(params.top_p >= 1, torch.inf, params.top_p.double())
    keep &= (before < p[:, None] * weight.sum(-1, keepdim=True)) | (rank == 0)
    return z.scatter(-1, order.indices, torch.where(keep, order.values, _NEVER))


def gather_logprobs(logits: Tensor, ids: Tensor, n: int) -> Logprobs:
    """Log-softmax of logits (R, V) at ids (R,) and of the n best. An id of -1 gives NaN and rank 0."""
    logprobs = logits.log_softmax(-1)
    drawn = ids >= 0
    at = ids.long().clamp_min(0)[:, None]
    mine = logits.gather(-1, at)
    ahead = (logits > mine) | ((logits == mine) & (torch.arange(logits.shape[1]) < at))
    chosen = torch.where(drawn, logprobs.gather(-1, at)[:, 0], torch.nan)
    rank = torch.where(drawn, ahead.sum(-1) + 1, 0).to(torch.int32)
    ordered = torch.where(logits.isnan(), _NEVER, logits)  # NaN sorts last, not first
    top = torch.sort(ordered, dim=-1, descending=True, stable=True).indices[:, :n]
    return Logprobs(chosen, rank, top.to(torch.int32), logprobs.gather(-1, top))
