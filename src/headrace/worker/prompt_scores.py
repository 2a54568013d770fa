"""Logprobs of prompt tokens: every row of a prefill slice is scored against the token that follows it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from headrace.contract.plan import IntArray, StepPlan
from headrace.contract.result import LogprobArrays, PromptLogprobs

from .packer import Packer
from .runner import Runner
from .sampler import to_arrays

ROWS_AT_ONCE = 64  # bounds the memory of the logits: 64 rows of a 262,144-word vocabulary are 64 MiB


@dataclass(frozen=True, slots=True)
class ScoreSlice:
    """Rows ``first_row`` .. of the batch, each scored against ``token_ids``, the tokens from ``position`` on."""

    seq_id: int
    first_row: int
    position: int
    token_ids: IntArray
    num_top: int


def plan_scores(plan: StepPlan, packer: Packer, query_start_loc: IntArray) -> list[ScoreSlice]:
    """The slices whose sequence wants prompt logprobs, cut at the prompt's end."""
    out: list[ScoreSlice] = []
    if not packer.any_scored:
        return out
    for i, seq_id in enumerate(plan.seq_ids.tolist()):
        start = packer.start(seq_id)
        if start.sampling.prompt_logprobs is None:
            continue
        first = int(plan.num_computed[i]) + 1
        last = min(int(plan.num_computed[i] + plan.num_scheduled[i]), start.prompt_len - 1)
        if first <= last:
            ids = np.array(packer.tokens(seq_id)[first : last + 1], dtype=np.int32)
            out.append(ScoreSlice(seq_id, int(query_start_loc[i]), first, ids, start.sampling.prompt_logprobs))
    return out


def moved(slices: list[ScoreSlice], old: IntArray, new: IntArray) -> list[ScoreSlice]:
    """The same slices after a batch was laid out anew: ``old`` and ``new`` query_start_loc (S+1,)."""
    places = {int(start): int(new[s]) for s, start in enumerate(old)}
    return [replace(item, first_row=places[item.first_row]) for item in slices]


def score(runner: Runner, hidden: Tensor, slices: list[ScoreSlice]) -> dict[int, PromptLogprobs]:
    """Device side. Rows go through the head in small batches; a row's bits do not depend on the cut."""
    return {s.seq_id: PromptLogprobs(s.position, s.token_ids, _score_one(runner, hidden, s)) for s in slices}


def _score_one(runner: Runner, hidden: Tensor, item: ScoreSlice) -> LogprobArrays:
    parts = []
    for at in range(0, len(item.token_ids), ROWS_AT_ONCE):
        ids = torch.from_numpy(item.token_ids[at : at + ROWS_AT_ONCE])
        rows = torch.arange(item.first_row + at, item.first_row + at + len(ids), dtype=torch.int32)
        logits = runner.logits(hidden, rows)
        parts.append(to_arrays(runner.ops.gather_logprobs(logits, ids, item.num_top)))
    return LogprobArrays(
        np.concatenate([p.chosen for p in parts]),
        np.concatenate([p.rank for p in parts]),
        np.concatenate([p.top_ids for p in parts]),
        np.concatenate([p.top_values for p in parts]),
    )
