"""Bad arguments end in a clear error before any work, never in a stray read or write."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headrace.kernels import case_inputs as inputs
from headrace.kernels.capture import Recording
from headrace.kernels.cpu import runtime
from headrace.kernels.ops import LogitRules, Ops, SampleParams


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def swapped(args: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*args[:at], value, *args[at + 1 :])


def test_linear_checks_sizes_and_dtypes(cpu: Ops) -> None:
    x, w, _ = inputs.linear(0, 3, 8, 5)
    packed = cpu.pack_weight(w)
    with pytest.raises(ValueError, match="x: dimension 1 is 7, expected 8"):
        cpu.linear(x[:, :7], packed, None)
    with pytest.raises(ValueError, match="bias: dimension 0 is 4, expected 5"):
        cpu.linear(x, packed, torch.zeros(4))
    with pytest.raises(TypeError):
        cpu.linear(x.double(), packed, None)
    with pytest.raises(ValueError, match="at least one row"):
        cpu.pack_weight(torch.zeros(0, 4))


@pytest.mark.parametrize("bad", [-1, 5])
def test_embedding_checks_ids(cpu: Ops, bad: int) -> None:
    with pytest.raises(ValueError, match=rf"ids\[1\] is {bad}, outside \[0, 5\)"):
        cpu.embedding(ints(0, bad), cpu.pack_weight(torch.zeros(5, 4)))


def test_embedding_wants_int32(cpu: Ops) -> None:
    with pytest.raises(TypeError):
        cpu.embedding(torch.zeros(2, dtype=torch.int64), cpu.pack_weight(torch.zeros(5, 4)))


def test_norms_check_sizes(cpu: Ops) -> None:
    with pytest.raises(ValueError, match="weight"):
        cpu.rms_norm(torch.zeros(2, 8), torch.zeros(7), 1e-5)
    with pytest.raises(ValueError, match="residual"):
        cpu.add_rms_norm(torch.zeros(2, 8), torch.zeros(1, 8), torch.zeros(8), 1e-5)


def test_rope_checks_positions_and_table(cpu: Ops) -> None:
    x = torch.zeros(2, 1, 8)
    with pytest.raises(ValueError, match="positions"):
        cpu.rope(x, x, ints(0, 16), inputs.rope_table(16, 8), False)
    with pytest.raises(ValueError, match="positions"):
        cpu.rope(x, x, ints(0), inputs.rope_table(16, 8), False)
    with pytest.raises(ValueError, match="table"):
        cpu.rope(x, x, ints(0, 1), inputs.rope_table(16, 10), False)


def test_gate_wants_an_even_width(cpu: Ops) -> None:
    with pytest.raises(ValueError, match="x: dimension 1"):
        cpu.silu_mul(torch.zeros(2, 5))


@pytest.mark.parametrize("bad", [-2, 12])
def test_write_kv_checks_slots(cpu: Ops, bad: int) -> None:
    rows, cache = torch.ones(2, 1, 4), torch.zeros(3, 1, 4, 4)
    with pytest.raises(ValueError, match="slots"):
        cpu.write_kv(rows, rows, cache, cache.clone(), ints(0, bad))
    assert not cache.any()


def test_write_kv_refuses_a_cache_it_would_have_to_copy(cpu: Ops) -> None:
    rows, cache = torch.ones(2, 2, 4), torch.zeros(3, 2, 4, 4)
    with pytest.raises(ValueError, match="k_cache: the rows of a block"):
        cpu.write_kv(rows, rows, torch.zeros(3, 4, 2, 4).transpose(1, 2), cache, ints(0, 1))
    with pytest.raises(ValueError, match="v_cache: blocks must not overlap"):
        cpu.write_kv(rows, rows, cache, torch.zeros(1, 2, 4, 4).expand(3, 2, 4, 4), ints(0, 1))
    with pytest.raises(ValueError, match="k_cache"):
        cpu.write_kv(rows, rows, cache.double(), cache, ints(0, 1))


@pytest.mark.parametrize(
    ("at", "value", "match"),
    [
        (3, ints(1, 99).view(1, 2), "block_table"),
        (3, ints(1, -1).view(1, 2), "block_table"),
        (4, ints(0, 4), "query_start_loc"),
        (4, ints(1, 3), "query_start_loc"),
        (4, ints(0, -1), "query_start_loc"),
        (4, ints(0), "query_start_loc"),
        (5, ints(2), "seq_lens"),
        (5, ints(97), "seq_lens"),
        (7, -1, "window"),
    ],
)
def test_attention_checks_indices(cpu: Ops, at: int, value: Any, match: str) -> None:
    args = inputs.attention(0, [(3, 40)])
    with pytest.raises(ValueError, match=match):
        cpu.paged_attention(*swapped(args, at, value))


def test_attention_checks_heads(cpu: Ops) -> None:
    args = inputs.attention(0, [(3, 40)])
    with pytest.raises(ValueError, match="heads"):
        cpu.paged_attention(*swapped(args, 0, torch.zeros(3, 8, 64)))
    with pytest.raises(ValueError, match="k_cache"):
        cpu.paged_attention(*swapped(args, 0, torch.zeros(3, 9, 32)))


def test_rules_check_ids_and_offsets(cpu: Ops) -> None:
    logits, rules = inputs.rules(0, 3, 20)
    fields = {name: getattr(rules, name) for name in LogitRules.__slots__}
    before = logits.clone()
    for name, value in (
        ("ban_offsets", ints(0, 0, 0, 99)),
        ("bias_offsets", ints(0, 2, 1, 2)),
        ("allow_ids", torch.full_like(rules.allow_ids, 20)),
        ("output_ids", torch.full_like(rules.output_ids, -1)),
        ("repetition", torch.ones(2)),
    ):
        with pytest.raises(ValueError, match=name.split("_")[0]):
            cpu.apply_rules(logits, LogitRules(**(fields | {name: value})))
    assert torch.equal(logits, before)


def test_sampling_checks_sizes(cpu: Ops) -> None:
    logits, params = inputs.sample(0, torch.zeros(3, 9), 1.0, 0, 1.0, 0.0)
    fields = {name: getattr(params, name) for name in SampleParams.__slots__}
    with pytest.raises(ValueError, match="top_p"):
        cpu.sample(logits, SampleParams(**(fields | {"top_p": torch.ones(2)})))
    with pytest.raises(TypeError):
        cpu.sample(logits, SampleParams(**(fields | {"seed": ints(0, 0, 0)})))


def test_logprobs_check_ids_and_n(cpu: Ops) -> None:
    with pytest.raises(ValueError, match="ids"):
        cpu.gather_logprobs(torch.zeros(1, 9), ints(9), 1)
    with pytest.raises(ValueError, match="n:"):
        cpu.gather_logprobs(torch.zeros(1, 9), ints(0), 10)


def test_runtime_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="'sse9' is not available"):
        runtime.set_isa("sse9")
    with pytest.raises(ValueError, match="num_threads"):
        runtime.set_num_threads(0)


def test_what_a_program_cannot_replay_is_refused_while_recording(cpu: Ops) -> None:
    """Running at once, it would be missing from every replay."""
    x, cache = torch.ones(2, 2, 4), torch.zeros(3, 2, 4, 4)
    recording = Recording(2, 1, [])
    for attempt in (
        lambda: cpu.rope(x, x, ints(0, 1), torch.zeros(8, 2, 2), False),
        lambda: cpu.write_kv(x, x, cache, cache, ints(0, 1)),
    ):
        with recording.capturing(), pytest.raises(ValueError, match="cannot be captured"):
            attempt()
