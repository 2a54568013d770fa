"""Bad input at the door of the core: an error that names the field, nothing changed, nothing silently converted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace._core import InvalidField, Ledger, RowTable, Scheduler, StaleMode
from headrace.contract.batch import PackedBatch

PROMPT = np.arange(6, dtype=np.int32)


def scheduler(**settings: Any) -> Scheduler:
    return Scheduler(**{"num_blocks": 20, "block_size": 4, "max_model_len": 60} | settings)


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("num_blocks", -1),
        ("num_blocks", 1),
        ("num_blocks", 2**31 - 1),
        ("block_size", 0),
        ("block_size", -4),
        ("block_size", 2**31 - 1),
        ("groups", []),
        ("groups", [(2, 0)]),
        ("groups", [(257, 8)]),  # would wrap to a sliding group
        ("groups", [(-1, 0)]),
        ("groups", [(0, 8)]),
        ("groups", [(1, 0)]),
        ("groups", [(1, -3)]),
        ("groups", [(1, 2**31 - 1)]),
        ("token_budget", 0),
        ("token_budget", 2**31 - 1),
        ("input_budget", -5),
        ("draft_slots", -1),
        ("draft_slots", 2**31 - 1),
        ("lookahead", -1),
        ("max_seqs", 0),
        ("max_model_len", 1),
        ("max_model_len", -(2**31)),
        ("max_model_len", 2**31 - 1),
        ("long_prefill_threshold", -1),
        ("watermark_blocks", -1),
        ("watermark_blocks", 19),
    ],
)
def test_knobs_that_cannot_work_are_named(knob: str, value: Any) -> None:
    with pytest.raises(InvalidField, match=rf"^{knob}: "):
        scheduler(**{knob: value})


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("id", {"id": -1}),
        ("prompt", {"prompt": np.empty(0, np.int32)}),
        ("prompt", {"prompt": -PROMPT}),
        ("prompt", {"prompt": np.zeros(60, np.int32)}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": -(2**31)}),
        ("min_tokens", {"min_tokens": 99}),
        ("arrival", {"arrival": float("nan")}),
        ("arrival", {"arrival": float("inf")}),
    ],
)
def test_sequences_that_cannot_be_served_are_refused(field: str, fields: dict[str, Any]) -> None:
    core = scheduler()
    call: dict[str, Any] = {"id": 0, "prompt": PROMPT} | fields
    with pytest.raises(InvalidField, match=rf"^{field}: "):
        core.add(call.pop("id"), call.pop("prompt"), **call)
    assert core.num_unfinished == 0


@pytest.mark.parametrize("array", [PROMPT.astype(np.int64), PROMPT + 0.5, PROMPT[::2], PROMPT.reshape(2, 3)])
def test_arrays_of_another_kind_are_refused(array: Any) -> None:
    core = scheduler()
    with pytest.raises(TypeError):
        core.add(0, array)  # a conversion would wrap or truncate ids
    core.add(0, PROMPT)
    step = core.plan().step
    ints = {"num_valid": np.full(1, 6, np.int32), "offsets": np.array([0, 1], np.int32), "tokens": PROMPT[:1]}
    for name, value in ints.items():
        with pytest.raises(TypeError):
            core.commit(step, **ints | {name: value.astype(np.int64)})
    assert core.num_steps_in_flight == 1
    core.commit(step, **ints)


def test_unknown_things() -> None:
    core = scheduler()
    assert not core.finish(7)
    assert core.inspect(7) is None
    core.set_ready(7, True)
    core.set_drafts(7, [1])
    for kind in (1, 3, 256, -1):
        with pytest.raises(InvalidField, match=r"^kind: "):
            core.plan(kind)
    with pytest.raises(RuntimeError, match="step 3 is not in flight"):
        core.fail(3)


def test_largest_max_tokens_ends_at_the_model_length() -> None:
    core = scheduler()
    core.add(0, PROMPT, max_tokens=2**31 - 1)
    for _ in range(54):
        plan = core.plan()
        core.commit(plan.step, plan.num_scheduled, np.array([0, 1], np.int32), PROMPT[1:2])
    assert core.num_unfinished == 0


def test_ledger_refuses_moves_that_cannot_be() -> None:
    ledger = Ledger(4)
    for move in (
        lambda: ledger.advance(5, 0),
        lambda: ledger.advance(-1, 0),
        lambda: ledger.commit(1, 1, 0, 0),
        lambda: ledger.drain(1, 0, StaleMode.DELIVER),
        lambda: ledger.start_at(-1),
    ):
        with pytest.raises(RuntimeError, match="ledger: "):
            move()
    assert ledger.num_computed == 0


def packed(plan: Any, rows: RowTable) -> PackedBatch:
    num_logits, max_blocks = rows.sizes(plan)
    return PackedBatch.empty(plan.total_tokens, len(plan.seq_ids), num_logits, 1, max_blocks)


def test_results_are_packed_into_the_caller_s_arrays_or_not_at_all() -> None:
    core, rows = scheduler(), RowTable(4, 1)
    core.add(0, PROMPT)
    plan = core.plan()
    rows.apply(plan)
    batch = packed(plan, rows)
    arrays = {name: getattr(batch, name) for name in batch.__slots__}
    for name, bad in (("slots", np.zeros((1, 6), np.int64)), ("discard", np.zeros(1, np.int32))):
        with pytest.raises(InvalidField, match=rf"^{name}: "):
            rows.pack(plan, SimpleNamespace(**arrays | {name: bad}))
    frozen = arrays["slots"].copy()
    frozen.flags.writeable = False
    with pytest.raises(InvalidField, match=r"^slots: "):
        rows.pack(plan, SimpleNamespace(**arrays | {"slots": frozen}))
    with pytest.raises(InvalidField, match=r"^buffers: "):
        rows.pack(plan, SimpleNamespace(**arrays | {"slots": np.zeros((1, 5), np.int32)}))
    rows.pack(plan, batch)
    assert batch.input_ids.tolist() == PROMPT.tolist()


def test_a_received_plan_is_checked_before_it_is_used() -> None:
    core, rows = scheduler(), RowTable(4, 1)
    core.add(0, PROMPT)
    plan = core.plan()
    names = [name for name in dir(plan) if isinstance(getattr(plan, name), np.ndarray)]
    fields = {name: getattr(plan, name).copy() for name in names}
    for name, bad in {
        "fresh_offsets": np.array([0, 7], np.int32),
        "fresh_slices": np.array([-1], np.int32),
        "block_offsets": np.array([0, 99], np.int32),
        "block_starts": np.array([-1], np.int32),
        "num_scheduled": np.array([6], np.int64),
    }.items():
        with pytest.raises(InvalidField):
            rows.apply(SimpleNamespace(**fields | {name: bad}))
    assert len(rows) == 0
    rows.apply(SimpleNamespace(**fields))
    assert rows.tokens(0).tolist() == PROMPT.tolist()


def test_one_call_packs_what_three_calls_pack() -> None:
    """And the core's own plan, read in place, gives what its arrays give."""
    core = scheduler()
    core.add(0, PROMPT)
    plan = core.plan()
    steps, at_once = RowTable(4, 1), RowTable(4, 1)
    names = [name for name in dir(plan) if isinstance(getattr(plan, name), np.ndarray)]
    received = SimpleNamespace(**{name: getattr(plan, name).copy() for name in names})
    steps.apply(received)
    expected = packed(plan, steps)
    steps.pack(received, expected)
    sizes: list[tuple[int, int]] = []

    def room(num_logits: int, max_blocks: int) -> PackedBatch:
        sizes.append((num_logits, max_blocks))
        return PackedBatch.empty(plan.total_tokens, len(plan.seq_ids), num_logits, 1, max_blocks)

    batch = at_once.take(plan, room)
    assert sizes == [steps.sizes(plan)]
    for name in batch.__slots__:
        assert getattr(batch, name).tolist() == getattr(expected, name).tolist(), name
    at_once.append_each(np.array([0, 9], np.int64), np.array([5, 6], np.int32))
    assert at_once.tokens(0).tolist() == [*PROMPT.tolist(), 5]
    with pytest.raises(InvalidField, match="tokens: must be one for each"):
        at_once.append_each(np.array([0], np.int64), np.array([], np.int32))
