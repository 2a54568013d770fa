"""Device-side correction: what the host could not know when it packed a step while the one before was in flight.

Only the newest input id of a sequence can be unknown. It is the token that the previous step sampled for the same
sequence, found through ``prev_positions``. Plain arrays: on a CPU they are the memory that the model reads.
"""

from __future__ import annotations

import numpy as np

from headrace.contract.plan import IntArray

UNKNOWN = -1


def fill_unknown_ids(
    input_ids: IntArray, query_start_loc: IntArray, prev_positions: IntArray, last_sampled: IntArray
) -> None:
    """In place. input_ids (T,), query_start_loc (S+1,), prev_positions (S,), last_sampled (S_prev,), all int32.

    Raises ValueError when an unknown id has no sampled token to stand for it: a broken plan must never reach a model.
    """
    rows = np.flatnonzero(input_ids == UNKNOWN)
    if rows.size == 0:
        return
    slices = np.searchsorted(query_start_loc, rows, side="right") - 1
    previous = prev_positions[slices]
    is_last_row = rows == query_start_loc[slices + 1] - 1
    if not (is_last_row & (previous >= 0) & (previous < last_sampled.size)).all():
        raise ValueError("input_ids: an unknown token that the previous step did not sample")
    found = last_sampled[previous]
    if (found < 0).any():
        raise ValueError("input_ids: the previous step sampled nothing for a sequence that goes on")
    input_ids[rows] = found
