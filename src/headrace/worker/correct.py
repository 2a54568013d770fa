"""Device-side correction: what the host could not know when it packed a step while the one before was in flight.

Only the newest input id of a sequence can be unknown. It is the token that the previous step sampled for the same
sequence, found through ``prev_positions``.
"""

from __future__ import annotations

import torch
from torch import Tensor

UNKNOWN = -1


def fill_unknown_ids(input_ids: Tensor, query_start_loc: Tensor, prev_positions: Tensor, last_sampled: Tensor) -> None:
    """In place. input_ids (T,), query_start_loc (S+1,), prev_positions (S,), last_sampled (S_prev,), all int32.

    Raises ValueError when an unknown id has no sampled token to stand for it: a broken plan must never reach a model.
    """
    rows = torch.nonzero(input_ids == UNKNOWN).flatten()
    if rows.numel() == 0:
        return
    slices = torch.searchsorted(query_start_loc, rows.to(torch.int32), right=True) - 1
    previous = prev_positions[slices]
    is_last_row = rows == query_start_loc[slices + 1] - 1
    if not bool((is_last_row & (previous >= 0) & (previous < last_sampled.numel())).all()):
        raise ValueError("input_ids: an unknown token that the previous step did not sample")
    input_ids[rows] = last_sampled[previous.long()]
    if bool((input_ids[rows] < 0).any()):
        raise ValueError("input_ids: the previous step sampled nothing for a sequence that goes on")
