"""Attention and choice over byte records: decoding exact, batches and blocks without a trace, wrong indices refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from headrace.kernels import record_inputs as inputs
from headrace.kernels.ops import Ops, PagedRecords
from headrace.kernels.record_formats import unpack_kv4, unpack_mxfp8

from .bits import same_bits

SLICES = [(1, 300), (17, 40), (0, 5), (70, 200), (1, 1), (1, 2)]
LATENT = {"heads": 3, "depth": 64, "reach": 30, "most": 9}


def attend(ops: Ops, args: tuple[Any, ...]) -> Tensor:
    return ops.latent_attention(*args)


def one_slice(args: tuple[Any, ...], s: int, begin: int, end: int) -> tuple[Any, ...]:
    """Rows [begin, end) of slice ``s`` of a latent attention as a step of their own."""
    q, starts, lengths, floors, reach, window, shared, narrow, chosen, sink = args
    at, last = int(starts[s]), int(lengths[s]) - (int(starts[s + 1]) - int(starts[s])) + end
    rows = slice(at + begin, at + end)
    tables = (replace(x, table=x.table[s : s + 1].contiguous()) for x in (window, shared))
    about = (torch.tensor([0, end - begin], dtype=torch.int32), torch.tensor([last], dtype=torch.int32))
    return q[rows], *about, floors[s : s + 1], reach, *tables, narrow, chosen[rows], sink


@pytest.mark.parametrize("narrow", [True, False])
def test_every_code_is_decoded_exactly(cpu: Ops, narrow: bool) -> None:
    """A row that sees one key and no sink to speak of gives that key, bit for bit: so every byte can be seen."""
    codes = torch.arange(256, dtype=torch.uint8).repeat_interleave(2 if not narrow else 1)
    held = codes if narrow else codes.masked_fill(codes & 127 == 127, 0)
    scales = torch.arange(16, 48, dtype=torch.uint8) if narrow else torch.arange(110, 126, dtype=torch.uint8)
    record = torch.cat((held, scales)).unsqueeze(0)
    blank = torch.zeros(1, 512 + 16, dtype=torch.uint8)
    blocks = torch.zeros(2, 528, dtype=torch.uint8)
    blocks[0, : record.shape[1]], blocks[1] = record[0], blank[0]
    table, other = torch.tensor([[1]], dtype=torch.int32), torch.tensor([[0]], dtype=torch.int32)
    window, shared = PagedRecords(blocks, table, 0, 1, 528), PagedRecords(blocks, other, 0, 1, record.shape[1])
    starts, one, floor = (torch.tensor(x, dtype=torch.int32) for x in ([0, 1], [1], [1]))  # the floor hides the window
    chosen, sink = torch.zeros(1, 1, dtype=torch.int32), torch.tensor([-1e30])
    out = cpu.latent_attention(torch.zeros(1, 1, 512), starts, one, floor, 1, window, shared, narrow, chosen, sink)
    want = (unpack_kv4 if narrow else unpack_mxfp8)(record)
    assert torch.equal(out[0], want)


def test_a_code_that_is_no_number_reaches_the_row(cpu: Ops) -> None:
    args = inputs.latent_attention(3, [(2, 9)], **LATENT, size=16)
    window = args[5]
    row = window.table[0, 0], 8 * window.width + 5
    window.blocks[row] = 127
    out = attend(cpu, args)
    assert out[1].isnan().all()
    assert not out[0].isnan().any()  # does not see that position


@pytest.mark.parametrize("other", [{"order": 9}, {"size": 2}, {"size": 64}])
@pytest.mark.parametrize("floor", [0, 35])
def test_blocks_change_nothing(cpu: Ops, other: dict[str, int], floor: int) -> None:
    base = attend(cpu, inputs.latent_attention(7, SLICES, **LATENT, floor=floor))
    assert not base.isnan().any()
    assert same_bits(attend(cpu, inputs.latent_attention(7, SLICES, **LATENT, floor=floor, **other)), base)
    picks = cpu.choose_entries(*inputs.choose_entries(7, SLICES, num_blocks=3))
    again = cpu.choose_entries(*inputs.choose_entries(7, SLICES, num_blocks=3, **other))
    assert all(map(torch.equal, picks, again))


@pytest.mark.parametrize("size", [1, 5, 70])
def test_chunks_and_company_change_nothing(cpu: Ops, size: int) -> None:
    args = inputs.latent_attention(8, SLICES, **LATENT)
    whole, starts = attend(cpu, args), args[1].tolist()
    for s, (rows, _) in enumerate(SLICES):
        cuts = range(0, rows, size)
        parts = [attend(cpu, one_slice(args, s, at, min(at + size, rows))) for at in cuts]
        assert same_bits(torch.cat([whole[:0], *parts]), whole[starts[s] : starts[s + 1]])


def test_a_row_without_keys_is_zero(cpu: Ops) -> None:
    args = inputs.latent_attention(3, [(1, 1)], **LATENT, floor=5)
    assert not attend(cpu, args).any()


def test_of_equal_scores_the_lower_index_wins(cpu: Ops, reference: Ops) -> None:
    q, weights, *rest = inputs.choose_entries(1, [(1, 50)], count=4, num_blocks=2)
    for ops in (cpu, reference):
        entries, blocks = ops.choose_entries(torch.zeros_like(q), weights, *rest)
        assert entries.tolist() == [[0, 1, 2, 3]]
        assert blocks.tolist() == [[0, 6]]


def test_latent_attention_refuses_foreign_indices(cpu: Ops) -> None:
    args = list(inputs.latent_attention(2, [(2, 40)], **LATENT))

    def refused(at: int, value: Any, words: str) -> None:
        with pytest.raises(ValueError, match=words):
            cpu.latent_attention(*args[:at], value, *args[at + 1 :])

    window, chosen = args[5], args[8].clone()
    refused(5, replace(window, table=torch.full_like(window.table, 99)), "window")
    refused(5, replace(window, offset=window.offset + 1), "leave their block")
    refused(5, replace(window, width=window.width - 1), "bytes")
    refused(2, torch.tensor([4000], dtype=torch.int32), "covers fewer")
    refused(1, torch.tensor([0, 1], dtype=torch.int32), "last row")
    chosen[0, :2] = torch.tensor([5, 5])
    refused(8, chosen, "ascend")
    chosen[0, 0], chosen[0, 1] = 4000, -1
    refused(8, chosen, "covers fewer")


def test_choose_entries_refuses_foreign_indices(cpu: Ops) -> None:
    args = list(inputs.choose_entries(2, [(2, 40)], among=3))

    def refused(at: int, value: Any, words: str) -> None:
        with pytest.raises(ValueError, match=words):
            cpu.choose_entries(*args[:at], value, *args[at + 1 :])

    refused(3, torch.tensor([5, 4000], dtype=torch.int32), "covers fewer")
    refused(3, torch.tensor([5, -1], dtype=torch.int32), "visible")
    refused(4, replace(args[4], table=torch.full_like(args[4].table, 99)), "codes")
    refused(8, args[8].flip(1).contiguous(), "ascend")
    refused(6, 0, "entries")
