"""Names, storage and shapes of every tensor of a V4.1 checkpoint: the released layout as data. Reads nothing.

``X.weight`` in FP8 or FP4 comes with ``X.scale``: one power of two per 32 x 32 tile, or per row and 32 columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from .config import V41Config
from .config_parts import MoEConfig

BF16, F32, FP8, FP4, SCALE = "BF16", "F32", "F8_E4M3", "I8", "F8_E8M0"
BLOCK = 32  # rows and columns under one scale


@dataclass(frozen=True, slots=True)
class Stored:
    """How one tensor is stored: safetensors' word for the type, and the shape."""

    kind: str
    shape: tuple[int, ...]


Table = dict[str, Stored]


def tensor_table(config: V41Config, engram_rows: tuple[int, ...]) -> Table:
    """Every tensor of the checkpoint, the vision tower and the draft layers included."""
    hidden, vocab = config.hidden_size, config.vocab_size
    table: Table = {
        "embed.weight": Stored(BF16, (vocab, hidden)),
        "norm.weight": Stored(BF16, (hidden,)),
        "head.weight": Stored(BF16, (vocab, hidden)),
    }
    table |= {f"image_{name}": Stored(BF16, (hidden,)) for name in ("start", "end", "newline")}
    for layer in range(config.num_layers):
        table |= _at(f"layers.{layer}.", _layer(config, layer, engram_rows))
    for layer in range(config.draft.num_layers):
        table |= _at(f"mtp.{layer}.", _draft_layer(config, layer))
    return table | _at("vision.", _vision(config)) | _at("aligner.", _aligner(config))


def _at(prefix: str, table: Table) -> Table:
    return {prefix + name: stored for name, stored in table.items()}


def _ceil(n: int) -> int:
    return -(-n // BLOCK)


def _tiles(name: str, n: int, k: int) -> Table:
    """An FP8 matrix with one scale per tile."""
    return {f"{name}.weight": Stored(FP8, (n, k)), f"{name}.scale": Stored(SCALE, (_ceil(n), _ceil(k)))}


def _fp4(name: str, n: int, k: int) -> Table:
    """An FP4 matrix, two codes a byte, one scale per row and 32 columns."""
    return {f"{name}.weight": Stored(FP4, (n, k // 2)), f"{name}.scale": Stored(SCALE, (n, k // BLOCK))}


def _block(config: V41Config, moe: MoEConfig) -> Table:
    """What backbone and draft layers have in common."""
    hidden, streams = config.hidden_size, config.streams
    mixes = 2 * streams + streams * streams
    table: Table = {f"{s}_norm.weight": Stored(BF16, (hidden,)) for s in ("attn", "ffn")}
    for s in ("attn", "ffn"):
        table[f"hc_{s}_base"] = Stored(F32, (mixes,))
        table[f"hc_{s}_fn"] = Stored(F32, (mixes, streams * hidden))
        table[f"hc_{s}_scale"] = Stored(F32, (3,))
    return table | _at("attn.", _attention(config)) | _at("ffn.", _moe(hidden, moe))


def _attention(c: V41Config) -> Table:
    return {
        "attn_sink": Stored(F32, (c.num_heads,)),
        "q_norm.weight": Stored(BF16, (c.q_rank,)),
        "kv_norm.weight": Stored(BF16, (c.head_dim,)),
        **_tiles("wq_a", c.q_rank, c.hidden_size),
        **_tiles("wq_b", c.num_heads * c.head_dim, c.q_rank),
        **_tiles("wkv", c.head_dim, c.hidden_size),
        **_tiles("wo_a", c.o_groups * c.o_rank, c.num_heads // c.o_groups * c.head_dim),
        **_tiles("wo_b", c.hidden_size, c.o_groups * c.o_rank),
    }


def _moe(hidden: int, moe: MoEConfig) -> Table:
    table: Table = {
        "gate.weight": Stored(BF16, (moe.num_experts, hidden)),
        "gate.bias": Stored(F32, (moe.num_experts,)),
        "gate.bias_vl": Stored(F32, (moe.num_experts,)),
    }
    for w, n, k in (("w1", moe.inner, hidden), ("w3", moe.inner, hidden), ("w2", hidden, moe.inner)):
        table |= _tiles(f"shared_experts.{w}", n, k)
        for expert in range(moe.num_experts):
            table |= _fp4(f"experts.{expert}.{w}", n, k)
    return table


def _layer(config: V41Config, layer: int, engram_rows: tuple[int, ...]) -> Table:
    topology, hidden, head = config.topology, config.hidden_size, config.head_dim
    table = _block(config, config.moe)
    if topology.owns_kv(layer):
        table["attn.compressor.wkv.weight"] = Stored(BF16, (head, hidden))
        table["attn.compressor.norm.weight"] = Stored(BF16, (head,))
        if topology.ratios[layer] == 2:
            table["attn.compressor.wgate.weight"] = Stored(BF16, (head, hidden))
    if topology.owns_index(layer):
        table |= _tiles("attn.indexer.wq_b", config.index_heads * config.index_dim, config.q_rank)
        table["attn.indexer.weights_proj.weight"] = Stored(BF16, (config.index_heads, hidden))
    if topology.owns_index_keys(layer):
        table["attn.indexer.wk.weight"] = Stored(BF16, (config.index_dim, head))
        table["attn.indexer.k_norm.weight"] = Stored(BF16, (config.index_dim,))
    if config.engram is not None and layer in config.engram.layers:
        table |= _at("engram.", _engram(config, engram_rows[config.engram.layers.index(layer)]))
    return table


def _engram(config: V41Config, rows: int) -> Table:
    assert config.engram is not None
    dim, streams, hidden = config.engram.head_dim, config.streams, config.hidden_size
    return {
        "q_weight": Stored(BF16, (streams, hidden)),
        "k_weight": Stored(BF16, (streams, hidden)),
        "embed.weight": Stored(FP8, (rows, dim)),
        "embed.scale": Stored(SCALE, (rows, dim // BLOCK)),
        **_tiles("wkv", (streams + 1) * hidden, config.engram.width),
    }


def _draft_layer(config: V41Config, layer: int) -> Table:
    hidden, draft = config.hidden_size, config.draft
    table = _block(config, draft.moe)
    if layer == 0:
        table |= _tiles("main_proj", hidden, len(draft.taps) * hidden)
        table["main_norm.weight"] = Stored(BF16, (hidden,))
    if layer == draft.num_layers - 1:
        table["norm.weight"] = Stored(BF16, (hidden,))
        table["markov_head.embed.weight"] = Stored(BF16, (config.vocab_size, draft.markov_rank))
        table["markov_head.head.weight"] = Stored(BF16, (config.vocab_size, draft.markov_rank))
        table["confidence_head.proj.weight"] = Stored(BF16, (1, hidden + draft.markov_rank))
    return table


def _vision(config: V41Config) -> Table:
    v = config.vision
    table: Table = {"norm.weight": Stored(BF16, (v.hidden,))}
    table |= _linear("patch_embed.proj", v.hidden, 3 * v.patch * v.patch)
    for block in range(v.num_layers):
        at = f"blocks.{block}."
        table |= {f"{at}norm{i}.weight": Stored(BF16, (v.hidden,)) for i in (1, 2)}
        table |= _linear(f"{at}attn.wqkv", 3 * v.hidden, v.hidden) | _linear(f"{at}attn.wo", v.hidden, v.hidden)
        table[f"{at}mlp.w1.weight"] = Stored(BF16, (2 * v.inner, v.hidden))
        table[f"{at}mlp.w2.weight"] = Stored(BF16, (v.hidden, v.inner))
    return table


def _aligner(config: V41Config) -> Table:
    wide = config.vision.hidden * config.vision.downsample**2
    return _linear("w1", config.hidden_size, wide) | _linear("w2", config.hidden_size, config.hidden_size)


def _linear(name: str, n: int, k: int) -> Table:
    return {f"{name}.weight": Stored(BF16, (n, k)), f"{name}.bias": Stored(BF16, (n,))}
