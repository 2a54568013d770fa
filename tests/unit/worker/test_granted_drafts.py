"""The device may only shorten what the plan has reserved (ADR 9), whatever is proposed and whatever it costs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._core import StepCost
from headrace.contract.plan import SequenceStart
from headrace.contract.request import SamplingParams
from headrace.speculation.ngram import NgramDrafter
from headrace.worker.speculator import Speculator

FREE = StepCost(sizes=[1, 1000], times_ms=[1.0, 1.0])  # more rows cost nothing: all drafts are worth it
DEAR = StepCost(sizes=[4, 5, 1000], times_ms=[1.0, 100.0, 100.0])  # none is


def speculator_of(count: int, most: int) -> tuple[Speculator, dict[str, Any]]:
    """``count`` sequences that repeat themselves, each with a token to compute and the next to be drawn."""
    speculator, text = Speculator(NgramDrafter(1, 3), most, 4, 61), [5, 6, 7, 8] * 5
    starts = [SequenceStart(i, 3, SamplingParams(temperature=0.0), ()) for i in range(count)]
    news = {
        "dropped": np.empty(0, np.int32),
        "fresh_offsets": np.arange(count + 1) * len(text),
        "fresh_tokens": np.array(text * count, dtype=np.int32),
    }
    speculator.take(SimpleNamespace(**news), starts)  # type: ignore[arg-type]
    return speculator, {"seq_ids": np.arange(count), "samples": np.ones(count, np.int32)}


@settings(max_examples=60, deadline=None)
@given(reserved=st.lists(st.integers(0, 6), min_size=1, max_size=4), cost=st.sampled_from([None, FREE, DEAR]))
def test_no_sequence_gets_more_rows_than_were_reserved(reserved: list[int], cost: StepCost | None) -> None:
    speculator, plan = speculator_of(len(reserved), most=6)
    speculator.cost = cost
    plan |= {"num_drafts": np.array(reserved, np.int32), "num_scheduled": 1 + np.array(reserved, np.int32)}
    batch = SimpleNamespace(block_tables=np.arange(1, 1 + len(reserved) * 16).reshape(1, len(reserved), 16))
    granted = speculator._granted(SimpleNamespace(**plan), batch)  # type: ignore[arg-type]
    counts = [len(draft) for draft in granted]
    assert all(count <= most for count, most in zip(counts, reserved))
    if cost is DEAR:
        assert sum(counts) <= max(0, 4 - len(reserved))
    else:
        assert counts == reserved, "the text repeats itself, so there were as many drafts as could be verified"
