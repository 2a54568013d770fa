"""Parameter containers of the V4.1 family. They hold tensors and have no forward.

``Weight`` is a backend's packed matrix, (out, in); plain tensors are float32 unless said otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from headrace.kernels.ops import Weight

from .engram_hash import HashTables


@dataclass(frozen=True, slots=True)
class MixParams:
    """One sub-layer's stream mixing: project (2m + m^2, m * hidden), scale (3,), base (2m + m^2,)."""

    project: Weight
    scale: Tensor
    base: Tensor


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """sink (heads,) · q_down, q_norm, q_up · kv (head_dim, hidden), kv_norm · out_groups: one (o_rank, heads of the
    group * head_dim) each · out_up (hidden, groups * o_rank)."""

    sink: Tensor
    q_down: Weight
    q_norm: Tensor
    q_up: Weight
    kv: Weight
    kv_norm: Tensor
    out_groups: tuple[Weight, ...]
    out_up: Weight


@dataclass(frozen=True, slots=True)
class CompressorParams:
    """kv (head_dim, hidden), for ratio 2 stacked behind the scores' rows · norm (head_dim,)."""

    project: Weight
    norm: Tensor


@dataclass(frozen=True, slots=True)
class IndexKeyParams:
    """project (index_dim, head_dim) · norm (index_dim,)."""

    project: Weight
    norm: Tensor


@dataclass(frozen=True, slots=True)
class IndexerParams:
    """query (index_heads * index_dim, q_rank) · head_weights (index_heads, hidden)."""

    query: Weight
    head_weights: Weight


@dataclass(frozen=True, slots=True)
class ExpertParams:
    """gate_up (2 * inner, hidden), gate rows first · down (hidden, inner)."""

    gate_up: Weight
    down: Weight


@dataclass(frozen=True, slots=True)
class MoEParams:
    """gate (experts, hidden) · bias, image_bias (experts,): they decide who is chosen, not with what weight."""

    gate: Weight
    bias: Tensor
    image_bias: Tensor
    experts: tuple[ExpertParams, ...]
    shared: ExpertParams


@dataclass(frozen=True, slots=True)
class EngramParams:
    """table (rows, dim) and scales (rows, dim / 32): bytes, mapped from the file · project (m * hidden keys, then
    hidden of the value) · gate (m, hidden): both norms' weights multiplied."""

    table: Tensor
    scales: Tensor
    hash: HashTables
    project: Weight
    gate: Tensor


@dataclass(frozen=True, slots=True)
class LayerParams:
    """One layer. The optional parts are there where its role has them (see ``topology``)."""

    attention_norm: Tensor
    attention_mix: MixParams
    attention: AttentionParams
    expert_norm: Tensor
    expert_mix: MixParams
    moe: MoEParams
    rotary: Tensor
    compressor: CompressorParams | None = None
    index_keys: IndexKeyParams | None = None
    indexer: IndexerParams | None = None
    engram: EngramParams | None = None


@dataclass(frozen=True, slots=True)
class DraftParams:
    """DFlash. main_project (hidden, taps * hidden), main_norm: from features to what draft layers attend to ·
    markov_embed, markov_head (vocab, rank) · confidence (1, hidden + rank)."""

    layers: tuple[LayerParams, ...]
    main_project: Weight
    main_norm: Tensor
    norm: Tensor
    markov_embed: Weight
    markov_head: Weight
    confidence: Weight


@dataclass(frozen=True, slots=True)
class BiasedParams:
    """A matrix with a bias."""

    weight: Weight
    bias: Tensor


@dataclass(frozen=True, slots=True)
class VisionBlockParams:
    """qkv (3 * width, width), out (width, width) · gate_up (2 * inner, width), down (width, inner), without bias."""

    attention_norm: Tensor
    qkv: BiasedParams
    out: BiasedParams
    mlp_norm: Tensor
    gate_up: Weight
    down: Weight


@dataclass(frozen=True, slots=True)
class VisionParams:
    """Tower and aligner. marks (3, hidden): what stands for a picture's start, the ends of its rows, its end."""

    patches: BiasedParams
    blocks: tuple[VisionBlockParams, ...]
    norm: Tensor
    align_in: BiasedParams
    align_out: BiasedParams
    marks: Tensor


@dataclass(frozen=True, slots=True)
class V41Params:
    """The whole model. token_map (vocab,) int32: compressed ids that Engram hashes, empty without Engram."""

    embedding: Weight
    layers: tuple[LayerParams, ...]
    norm: Tensor
    head: Weight
    token_map: Tensor
    draft: DraftParams
    vision: VisionParams
