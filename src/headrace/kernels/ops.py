"""The op interface: the platform boundary. Models and the sampler call an ``Ops``; backends fill it in.

Conventions, unless a docstring says otherwise: floating tensors are float32 and contiguous; index tensors are
int32; ``T`` is the number of packed tokens of a step, ``S`` the number of slices, ``R`` the number of logits
rows, ``V`` the vocabulary, ``D`` the head size. T, S and R may be 0. Every op is a pure function of its rows:
a row's result has the same bits whatever the other rows, the thread count and the block table are (promised
by the ``cpu`` backend).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor

from .quant import Stored

# A weight matrix as a backend wants it (packed, tiled, or just the tensor). Made by ``Ops.pack_weight`` only.
Weight = Any


@dataclass(frozen=True, slots=True)
class SampleParams:
    """Per-row sampling knobs, each an array of length R. Rows are independent.

    temperature (R,) float32, 0 = greedy · top_k (R,) int32, 0 = off · top_p (R,) float32, 1 = off ·
    min_p (R,) float32, 0 = off · seed (R,) int64 · position (R,) int64: position of the token being drawn.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    position: Tensor


@dataclass(frozen=True, slots=True)
class LogitRules:
    """Changes to raw logits, ragged: ``offsets`` (R+1,) int32 cuts the flat arrays into rows.

    bias_offsets/bias_ids/bias_values: added to the logits (``-inf`` bans an id) ·
    allow_offsets/allow_ids: when a row's run is not empty, every id outside it becomes -inf ·
    prompt_offsets/prompt_ids and output_offsets/output_ids: tokens that penalties look at (repeats allowed) ·
    repetition, presence, frequency: (R,) float32 (1, 0, 0 = off) ·
    ban_offsets/ban_ids: ids set to -inf last (min_tokens, EOS rules).
    Order: allow, bias, penalties (repetition, then frequency, then presence), ban.
    Repetition looks at prompt and output ids: a positive logit is divided, a negative one multiplied, once
    per distinct id. Frequency subtracts ``frequency * count`` and presence ``presence`` for output ids only.
    """

    bias_offsets: Tensor
    bias_ids: Tensor
    bias_values: Tensor
    allow_offsets: Tensor
    allow_ids: Tensor
    prompt_offsets: Tensor
    prompt_ids: Tensor
    output_offsets: Tensor
    output_ids: Tensor
    repetition: Tensor
    presence: Tensor
    frequency: Tensor
    ban_offsets: Tensor
    ban_ids: Tensor


@dataclass(frozen=True, slots=True)
class Logprobs:
    """``chosen`` (R,) float32, ``rank`` (R,) int32 counted from 1 (number of ids with a logit >= the chosen
    one's, ties broken by id so that ranks are unique), ``top_ids`` (R, n) int32, ``top_values`` (R, n)
    float32, descending, ties by lower id. A row whose id is -1 (nothing drawn) has chosen NaN and rank 0."""

    chosen: Tensor
    rank: Tensor
    top_ids: Tensor
    top_values: Tensor


@dataclass(frozen=True, slots=True)
class PagedRecords:
    """Byte records of a step's sequences in a pool: row r of slice s is the (r % rows)-th of ``rows`` records of
    ``width`` bytes, from byte ``offset`` on, of block ``table[s, r // rows]``. Formats: ``record_formats``.

    blocks (B, bytes) uint8 · table (S, n) int32.
    """

    blocks: Tensor
    table: Tensor
    offset: int
    rows: int
    width: int


@dataclass(frozen=True, slots=True)
class Ops:
    """One backend's table of operations. ``provenance[name]`` says which backend really serves each op."""

    # pack_weight(w) -> Weight (N, K) of a tensor, of stored blocks, or of a list of either, stacked by rows:
    #   each keeps its own storage. May copy; the caller may drop ``w`` afterwards.
    pack_weight: Callable[[Stored], Weight]
    # linear(x (T, K), w, bias (N,) | None) -> (T, N): x @ w.T + bias. K is reduced in one fixed order. Where w is
    #   stored in blocks a backend may round x to int8, with a scale per row and 32 values.
    linear: Callable[[Tensor, Weight, Tensor | None], Tensor]
    # norm_linear(x (T, K), residual (T, K) | None, norm (K,), eps, w, bias | None) -> (linear of rms_norm(x +
    #   residual), x + residual); without a residual, of rms_norm(x), and x itself. One pass makes each row.
    norm_linear: Callable[[Tensor, Tensor | None, Tensor, float, Weight, Tensor | None], tuple[Tensor, Tensor]]
    # gated_linear(x (T, 2K), gelu: bool, w) -> (T, N): linear of silu_mul(x), or of gelu_tanh_mul(x), no bias.
    gated_linear: Callable[[Tensor, bool, Weight], Tensor]
    # norm_argmax(x (R, K), norm (K,), eps, w) -> ids (R,) int32: what greedy ``sample`` draws from the linear of
    #   rms_norm(x), without keeping the logits.
    norm_argmax: Callable[[Tensor, Tensor, float, Weight], Tensor]
    # embedding(ids (T,), w (V, K)) -> (T, K). The same Weight may serve as LM head.
    embedding: Callable[[Tensor, Weight], Tensor]
    # rms_norm(x (..., D), weight (D,), eps) -> like x, over the last dimension:
    #   x * rsqrt(mean(x^2) + eps) * weight.
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    # add_rms_norm(x (T, D), residual (T, D), weight (D,), eps) -> (norm(x + residual), x + residual).
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    # rope(q (T, Hq, D), k (T, Hkv, D), positions (T,), table (max_pos, 2, rot/2): cos then sin,
    #   interleaved: bool) -> (q', k'). Rotates the first ``rot`` of D dims. interleaved False: pairs
    #   (i, i + rot/2); True: (2i, 2i + 1).
    rope: Callable[[Tensor, Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor]]
    # silu_mul(x (T, 2F)) -> (T, F): silu(x[:, :F]) * x[:, F:].
    silu_mul: Callable[[Tensor], Tensor]
    # gelu_tanh_mul(x (T, 2F)) -> (T, F): gelu (tanh approximation) of the first half, times the second.
    gelu_tanh_mul: Callable[[Tensor], Tensor]
    # Caches (B, Hkv, block_size, row) are float32, bfloat16, or int16 or int8 codes with a scale (see ``kv_rows``);
    # writing rounds to nearest even. Over codes a backend may round queries and weights to int16.
    # write_kv(k (T, Hkv, D), v (T, Hkv, D), k_cache, v_cache, slots (T,)): in place.
    #   slot = block * block_size + offset; -1 is padding and writes nothing.
    write_kv: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
    # qkv_to_cache(qkv (T, (Hq + 2 Hkv) * D), q_norm (D,) | None, k_norm (D,) | None, eps, positions (T,),
    #   table as in rope, interleaved, k_cache, v_cache, slots (T,)) -> q (T, Hq, D). What rms_norm (per head),
    #   rope and write_kv do one after another, in one pass over the rows.
    qkv_to_cache: Callable[
        [Tensor, Tensor | None, Tensor | None, float, Tensor, Tensor, bool, Tensor, Tensor, Tensor], Tensor
    ]
    # gather_rows(x (T, D), rows (R,) int32) -> (R, D).
    gather_rows: Callable[[Tensor, Tensor], Tensor]
    # axpy(x (T, D), factor, other (T, D) | None) -> x * factor (+ other): multiplied first, then added.
    axpy: Callable[[Tensor, float, Tensor | None], Tensor]
    # paged_attention(q (T, Hq, D), k_cache, v_cache, block_table (S, max_blocks),
    #   query_start_loc (S+1,), seq_lens (S,), scale, window) -> (T, Hq, D).
    #   Row j of slice s sits at position seq_lens[s] - (query_start_loc[s+1] - query_start_loc[s]) + j and
    #   sees positions <= its own, and > its own - window when window > 0. Blocks wholly outside may be 0
    #   (null) and are never read. Hq is a multiple of Hkv; query head h reads KV head h // (Hq / Hkv).
    #   Rows beyond the last slice (padding) come back as zeros.
    paged_attention: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, float, int], Tensor]
    # latent_attention(q (T, H, D), query_start_loc (S+1,), seq_lens (S,), floors (S,), reach, window: PagedRecords,
    #   shared: PagedRecords | None, narrow: bool, chosen (T, K) | None, sink (H,)) -> (T, H, D). Keys are values. Rows
    #   sit as in paged_attention; each sees of ``window`` (MXFP8) the ``reach`` positions up to its own, none before
    #   its slice's floor, and of ``shared`` (4-bit KV when narrow, else MXFP8) the rows ``chosen``, ascending with -1
    #   behind them: in one softmax with ``sink``, a logit per head that has no value. Scores are scaled by D^-0.5.
    latent_attention: Callable[
        [Tensor, Tensor, Tensor, Tensor, int, PagedRecords, PagedRecords | None, bool, Tensor | None, Tensor], Tensor
    ]
    # choose_entries(q (T, H, D), weights (T, H), query_start_loc (S+1,), visible (T,), codes: PagedRecords,
    #   scales: PagedRecords, count, rounded: bool, among (T, C) | None, num_blocks, block_size) -> entries (T, count),
    #   blocks (T, num_blocks), both int32, ascending, -1 behind them. The best of each row's first ``visible`` keys
    #   (e2m1 codes, ue8m0 per 32) by sum over h of weights[h] * relu(q[h] . key), rounded to bfloat16 when ``rounded``,
    #   of equal ones the lower; ``among``: of these blocks only. Blocks of ``block_size`` keys by their best one; the
    #   last visible one is always in.
    choose_entries: Callable[
        [Tensor, Tensor, Tensor, Tensor, PagedRecords, PagedRecords, int, bool, Tensor | None, int, int],
        tuple[Tensor, Tensor],
    ]
    # apply_rules(logits (R, V), rules): in place.
    apply_rules: Callable[[Tensor, LogitRules], None]
    # sample(logits (R, V), params) -> ids (R,) int32: temperature, min-p, top-k, top-p, then Gumbel-max
    #   with noise that is a function of (seed, position, vocabulary id) alone. Greedy takes the lowest id of
    #   the maxima. A row without a finite maximum (any NaN, or all -inf) returns -1.
    sample: Callable[[Tensor, SampleParams], Tensor]
    # gather_logprobs(logits (R, V), ids (R,), n) -> Logprobs of log-softmax(logits); n may be 0.
    gather_logprobs: Callable[[Tensor, Tensor, int], Logprobs]

    name: str = "reference"
    provenance: dict[str, str] = field(default_factory=dict)


def op_names() -> tuple[str, ...]:
    """Names of all operations, in interface order."""
    return tuple(f.name for f in fields(Ops) if f.name not in ("name", "provenance"))
