"""The compressor of a KV source: one row of shared KV, and one index key, per token or per pair of tokens.

Of a pair whose second token has not come, the first one's half waits in the sequence's open record. Rows are written
once, when their pair is complete, and are the same whether the pair came in one step or in two.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.contract.errors import WorkerError

from .params import CompressorParams, LayerParams
from .quantise import pack_kv4, pack_mxfp4, pack_mxfp8
from .records import ID_BYTES, MOST_DRAFTS, OPEN_ROWS, as_bytes, as_floats, as_ids
from .step import Slice, Step
from .tensor_ops import rotate_tail


def compress(step: Step, layer: int, params: LayerParams, hidden: Tensor) -> None:
    """Writes the rows that the step's tokens complete. ``hidden`` (T, hidden), normed for attention."""
    assert params.compressor is not None
    ratio = step.config.topology.ratios[layer]
    done = (step.positions + 1) % ratio == 0
    if ratio == 1:
        latent = step.arithmetic.linear(hidden, params.compressor.project)
    else:
        latent = _pooled_pairs(step, layer, params.compressor, hidden, done)
    latent = step.arithmetic.norm(latent, params.compressor.norm, step.config.norm_eps)
    slices, rows = step.slice_of[done], step.positions[done] // ratio
    _write(step, layer, params, latent, slices, rows, rows * ratio)


def _pooled_pairs(step: Step, layer: int, compressor: CompressorParams, hidden: Tensor, done: Tensor) -> Tensor:
    """Per channel, the softmax of both tokens' scores weighs their latents: (pairs, head_dim)."""
    halves = step.arithmetic.exact_linear(hidden, compressor.project)  # (T, 2 head_dim): scores, latents
    first = halves.roll(1, 0)
    _fill_in_open(step, layer, first)
    _keep_open(step, layer, halves)
    (score_a, latent_a), (score_b, latent_b) = (x[done].chunk(2, dim=1) for x in (first, halves))
    top = torch.maximum(score_a, score_b)
    a, b = torch.exp(score_a - top), torch.exp(score_b - top)
    return step.arithmetic.stored((a * latent_a + b * latent_b) / (a + b))


def _open_places(step: Step, layer: int, slices: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Pool blocks and rows in them where even ``positions`` keep their halves."""
    section, size = step.records.open[layer], step.records.block_size
    blocks = step.pages.block_of(section, slices, positions // size)
    return blocks, positions % size // 2 % step.records.open_rows


def _fill_in_open(step: Step, layer: int, first: Tensor) -> None:
    """Rows whose partner came in an earlier step: it is read back."""
    cut = [s for s in step.slices if s.first % 2 == 1]
    if cut:
        numbers = torch.tensor([s.number for s in cut])
        places = _open_places(step, layer, numbers, torch.tensor([s.first - 1 for s in cut]))
        record = step.pages.get(step.records.open[layer], *places)
        _check_open(as_ids(record[:, -ID_BYTES:]), cut)
        first[torch.tensor([s.start for s in cut])] = as_floats(record[:, :-ID_BYTES])


def _check_open(positions: Tensor, cut: list[Slice]) -> None:
    """A half that rejected drafts have overwritten is gone: better no answer than one from another token's half."""
    for held, s in zip(positions.tolist(), cut):
        if held != s.first - 1:
            raise WorkerError(f"more than {MOST_DRAFTS} drafted tokens were taken back at position {s.first}")


def _keep_open(step: Step, layer: int, halves: Tensor) -> None:
    """The last even positions of each slice; older ones have met their partners for good."""
    ends = torch.tensor([s.last for s in step.slices])[step.slice_of]
    kept = (step.positions % 2 == 0) & (step.positions >= ends - 2 * OPEN_ROWS)
    places = _open_places(step, layer, step.slice_of[kept], step.positions[kept])
    ids = step.positions[kept].to(torch.int32).unsqueeze(1)
    step.pages.put(step.records.open[layer], *places, torch.cat((as_bytes(halves[kept]), as_bytes(ids)), dim=1))


def _write(
    step: Step, layer: int, params: LayerParams, latent: Tensor, slices: Tensor, rows: Tensor, positions: Tensor
) -> None:
    """Index keys come from the row before its rotation; both stand at the position of the row's first token."""
    arithmetic, records = step.arithmetic, step.records
    if params.index_keys is not None:
        key = arithmetic.linear(latent, params.index_keys.project)
        key = arithmetic.norm(key, params.index_keys.norm, step.config.norm_eps)
        codes, scales = pack_mxfp4(arithmetic.stored(rotate_tail(key, params.rotary, positions)))
        step.pages.write(records.index_codes[layer], slices, rows, codes)
        step.pages.write(records.index_scales[layer], slices, rows, scales)
    rotated = arithmetic.stored(rotate_tail(latent, params.rotary, positions))
    kv = pack_kv4(rotated) if step.config.narrow_kv else pack_mxfp8(rotated)
    step.pages.write(records.kv[layer], slices, rows, kv)
