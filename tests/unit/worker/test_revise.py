"""Laying a batch out again: worked numbers of design example V-E3, and what must never reach a model."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.contract.batch import PackedBatch
from headrace.contract.plan import IntArray
from headrace.worker.revise import Rows, lay_out


def ints(*values: int) -> IntArray:
    return np.array(values, dtype=np.int32)


def packed() -> PackedBatch:
    """Three slices with tables A [7, 2], B [1, 3, 5], C [8]; only the tables matter."""
    batch = PackedBatch.empty(6, 3, 3, 1, 3)
    batch.block_tables[0] = [[7, 2, 0], [1, 3, 5], [8, 0, 0]]
    return batch


def test_example_v_e3() -> None:
    rows = [Rows(ints(11, 12), 4, 0), Rows(ints(13), 10, 0), Rows(ints(14, 15, 16), 0, 0)]
    batch = lay_out(packed(), rows, 4)
    assert batch.request_index.tolist() == [0, 0, 1, 2, 2, 2]
    assert batch.positions.tolist() == [4, 5, 10, 0, 1, 2]
    assert batch.query_start_loc.tolist() == [0, 2, 3, 6]
    assert batch.seq_lens.tolist() == [6, 11, 3]
    assert batch.logits_indices.tolist() == [1, 2, 5]
    assert batch.slots.tolist() == [[8, 9, 22, 32, 33, 34]]


def test_drafts_have_logits_rows_and_parts_of_prefills_have_none() -> None:
    rows = [Rows(ints(1, 2, 3), 3, 2), Rows(ints(4), 9, 0), Rows(ints(5, 6), 0, 0, samples=False)]
    assert lay_out(packed(), rows, 4).logits_indices.tolist() == [0, 1, 2, 3]


def test_k9_an_unknown_id_is_an_error_and_no_input() -> None:
    with pytest.raises(ValueError, match="input_ids"):
        lay_out(packed(), [Rows(ints(1, -1), 4, 0), Rows(ints(1), 0, 0), Rows(ints(1), 0, 0)], 4)


def test_k13_a_row_without_a_block_is_an_error_and_no_write() -> None:
    with pytest.raises(ValueError, match="slots"):
        lay_out(packed(), [Rows(ints(1), 8, 0), Rows(ints(1), 0, 0), Rows(ints(1), 0, 0)], 4)
