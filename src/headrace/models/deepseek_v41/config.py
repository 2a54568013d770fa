"""V41Config: everything the program needs to know of a ``config.json``, derived and checked once. Holds no tensor.

Whatever would change the arithmetic and is not supported is refused here by name, before a weight is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.contract.errors import ConfigError
from headrace.models.dense.config_reader import ConfigReader

from .config_parts import (
    MOST_EXPERTS,
    DraftConfig,
    EngramConfig,
    MoEConfig,
    VisionConfig,
    Yarn,
    check_quantisation,
    layer_list,
    read_draft,
    read_engram,
    read_moe,
    read_vision,
    read_yarn,
    require,
    token_id,
)
from .topology import Candidates, Topology, derive_topology

ARCHITECTURE = "DeepseekV41ForCausalLM"
MODEL_TYPE = "deepseek_v41"
SCALE_COLUMNS = 32
MOST_HEAD_DIM, MOST_INDEX_DIM = 1024, 256  # what the kernels hold of one head
MOST_ENTRIES, MOST_CANDIDATES = 1 << 14, 1 << 16  # that a row may choose: a step has room for all of them, per row
# Text settings with the only value that this family's program has.
FIXED: dict[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "num_key_value_heads": 1,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "n_shared_experts": 1,
    "tie_word_embeddings": False,
    "hc_mult": 4,
}
# The same for settings that may be absent.
OPTIONAL_FIXED: dict[str, Any] = {"hc_shifted": True, "dspark_target_attn_input": True}


@dataclass(frozen=True, slots=True)
class V41Config:
    """Sizes and choices of one model. ``ratios``, sources and roles are in ``topology``.

    narrow_kv: compressed KV in 4 bits, as released; else in 8, like window records.
    """

    vocab_size: int
    hidden_size: int
    num_heads: int
    head_dim: int
    rope_dims: int
    q_rank: int
    o_rank: int
    o_groups: int
    window: int
    rope_theta: float
    compress_rope_theta: float
    yarn: Yarn | None
    max_positions: int
    norm_eps: float
    swiglu_limit: float
    index_heads: int
    index_dim: int
    index_topk: int
    streams: int
    sinkhorn_rounds: int
    mix_eps: float
    pad_id: int
    image_id: int
    narrow_kv: bool
    topology: Topology
    moe: MoEConfig
    engram: EngramConfig | None
    draft: DraftConfig
    vision: VisionConfig

    @property
    def num_layers(self) -> int:
        return self.topology.num_layers


def derive_v41(values: Mapping[str, Any]) -> V41Config:
    """Check a ``config.json`` dictionary, derive the configuration. Errors: ConfigError naming key, layer and rule."""
    top = ConfigReader(values)
    require(top, {"model_type": MODEL_TYPE, "dtype": "bfloat16"})
    for key in ("pad_token_id", "bos_token_id", "eos_token_id"):
        token_id(top, key)
    check_quantisation(_section(top, "quantization_config"))
    text = _section(top, "text_config")
    require(text, FIXED)
    require(text, {k: v for k, v in OPTIONAL_FIXED.items() if text.raw(k) is not None})
    num_layers = text.integer("num_hidden_layers", most=1024)
    topology, draft_layers = _read_topology(text, num_layers)
    config = V41Config(
        vocab_size=text.integer("vocab_size"),
        hidden_size=text.integer("hidden_size", most=1 << 18),
        num_heads=text.integer("num_attention_heads", most=1 << 14),
        head_dim=text.integer("head_dim", most=MOST_HEAD_DIM),
        rope_dims=text.integer("qk_rope_head_dim", most=1 << 14),
        q_rank=text.integer("q_lora_rank", most=1 << 18),
        o_rank=text.integer("o_lora_rank", most=1 << 18),
        o_groups=text.integer("o_groups", most=1 << 14),
        window=text.integer("sliding_window"),
        rope_theta=text.number("rope_theta"),
        compress_rope_theta=text.number("compress_rope_theta"),
        yarn=read_yarn(text.section("rope_scaling")),
        max_positions=text.integer("max_position_embeddings"),
        norm_eps=text.number("rms_norm_eps"),
        swiglu_limit=text.number("swiglu_limit"),
        index_heads=text.integer("index_n_heads", most=1 << 14),
        index_dim=text.integer("index_head_dim", most=MOST_INDEX_DIM),
        index_topk=text.integer("index_topk", most=MOST_ENTRIES),
        streams=text.integer("hc_mult"),
        sinkhorn_rounds=text.integer("hc_sinkhorn_iters", most=1024),
        mix_eps=text.number("hc_eps"),
        pad_id=token_id(top, "pad_token_id"),
        image_id=top.integer("image_token_id"),
        narrow_kv=text.flag("use_fp4_sparse_kv", True),
        topology=topology,
        moe=read_moe(text, "n_routed_experts", "num_experts_per_tok"),
        engram=read_engram(text, num_layers),
        draft=read_draft(text, draft_layers, num_layers),
        vision=read_vision(_section(top, "vision_config")),
    )
    _check_shapes(config)
    _check_experts(config)
    _check_rotary(config)
    _check_ids(config)
    return config


def _section(reader: ConfigReader, key: str) -> ConfigReader:
    section = reader.section(key)
    if section is None:
        raise ConfigError(reader.name(key), "is missing")
    return section


def _read_topology(text: ConfigReader, num_layers: int) -> tuple[Topology, int]:
    """The backbone's topology, and the number of draft layers: they come last and see their window only."""
    draft_layers = text.integer("num_nextn_predict_layers", most=64)
    ratios = layer_list(text, "compress_ratios")
    if len(ratios) != num_layers + draft_layers:
        raise ConfigError(
            text.name("compress_ratios"), f"has {len(ratios)} entries for {num_layers} + {draft_layers} layers"
        )
    if any(ratios[num_layers:]):
        raise ConfigError(text.name("compress_ratios"), "must be 0 for the draft layers at its end")
    kv = layer_list(text, "kv_source_layer_ids")
    keys = kv if text.raw("index_k_source_layer_ids") is None else layer_list(text, "index_k_source_layer_ids")
    index = layer_list(text, "index_source_layer_ids")
    topk = text.integer("index_topk", most=MOST_ENTRIES)
    topology = derive_topology(tuple(ratios[:num_layers]), kv, index, keys, _read_candidates(text), topk)
    return topology, draft_layers


def _read_candidates(text: ConfigReader) -> Candidates | None:
    """None when the key holds null or -1. It must be there: its absence would be a guess."""
    key = "candidate_source_layer_id"
    if not text.has(key):
        raise ConfigError(text.name(key), "is missing; null turns candidate blocks off")
    source = text.raw(key)
    if source is None or source == -1:
        return None
    if isinstance(source, bool) or not isinstance(source, int):
        raise ConfigError(text.name(key), f"must be a layer, -1 or null, not {source!r}")
    blocks = text.integer("candidate_topk_blocks", most=MOST_CANDIDATES)
    return Candidates(source, blocks, text.integer("candidate_block_size"))


def _check_shapes(c: V41Config) -> None:
    def divides(key: str, size: int, by: int, why: str) -> None:
        if size % by:
            raise ConfigError(f"text_config.{key}", f"{size} is no multiple of {by}: {why}")

    for key, size in (
        ("head_dim", c.head_dim),
        ("index_head_dim", c.index_dim),
        ("hidden_size", c.hidden_size),
        ("q_lora_rank", c.q_rank),
        ("moe_intermediate_size", c.moe.inner),
    ):
        divides(key, size, SCALE_COLUMNS, "scales cover 32 columns")
    divides("o_lora_rank", c.o_groups * c.o_rank, SCALE_COLUMNS, "scales cover 32 columns")
    divides("num_attention_heads", c.num_heads, c.o_groups, "heads are split into o_groups")
    divides("qk_rope_head_dim", c.rope_dims, 2, "rotary positions need pairs")
    for key, size in (("head_dim", c.head_dim), ("index_head_dim", c.index_dim)):
        if c.rope_dims > size:
            raise ConfigError("text_config.qk_rope_head_dim", f"{c.rope_dims} is above {key} {size}")
    if c.window < 2:
        raise ConfigError("text_config.sliding_window", "must be at least 2")


def _check_experts(c: V41Config) -> None:
    experts = c.num_layers * c.moe.num_experts + c.draft.num_layers * c.draft.moe.num_experts
    if experts > MOST_EXPERTS:
        words = f"{c.moe.num_experts} make {experts} experts in all layers, more than the {MOST_EXPERTS} at most"
        raise ConfigError("text_config.n_routed_experts", words)


def _check_rotary(c: V41Config) -> None:
    """Pairs turn slower from one to the next; what does not is no scale of positions."""
    for key, theta in (("rope_theta", c.rope_theta), ("compress_rope_theta", c.compress_rope_theta)):
        if theta <= 1:
            raise ConfigError(f"text_config.{key}", f"must be above 1, not {theta}")


def _check_ids(c: V41Config) -> None:
    """Ids that are embedded or mapped whatever a prompt says."""
    ids = [("image_token_id", c.image_id), ("text_config.dspark_noise_token_id", c.draft.noise_id)]
    if c.engram is not None:
        ids.append(("text_config.engram_pad_token_id", c.engram.pad_id))
    for key, number in ids:
        if number >= c.vocab_size:
            raise ConfigError(key, f"{number} is no token: the vocabulary has {c.vocab_size}")
