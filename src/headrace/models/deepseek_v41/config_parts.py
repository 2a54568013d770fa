"""The parts of a V4.1 configuration: experts, Engram, drafting, vision, YaRN. Reads and checks; computes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.contract.errors import ConfigError
from headrace.models.dense.config_reader import ConfigReader

QUANTISATION: dict[str, Any] = {
    "quant_method": "fp8",
    "expert_dtype": "fp4",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
}
LEAST_IMAGE_TOKENS = 4
# Each size by itself may be as large as a model is likely to have it; these bound what they make together, many times
# what the released model has, before anything is made of it.
MOST_EXPERTS = 1 << 17  # of all layers; each has names and shapes in the table of tensors
MOST_TABLES = 1 << 12  # of Engram, in all layers; each has a prime to be found
MOST_PATCHES = 1 << 15  # of a picture: each sees each, so scores take the square of it


@dataclass(frozen=True, slots=True)
class Yarn:
    """Stretching of rotary positions in layers with compressed KV (YaRN, arXiv 2309.00071; magnitude scale 1)."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_positions: int


@dataclass(frozen=True, slots=True)
class MoEConfig:
    """One expert layer: ``num_chosen`` of ``num_experts`` per token, and one shared; all are ``inner`` wide."""

    num_experts: int
    num_chosen: int
    inner: int
    scaling: float


@dataclass(frozen=True, slots=True)
class EngramConfig:
    """The n-gram memory. num_rows: rows of each layer's table as the file states them, or empty."""

    layers: tuple[int, ...]
    longest: int
    first_prime: int
    num_heads: int
    head_dim: int
    pad_id: int
    num_rows: tuple[int, ...]

    @property
    def width(self) -> int:
        """Columns of what one token reads: every n-gram length 2..longest, every head."""
        return (self.longest - 1) * self.num_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """DFlash: ``num_layers`` layers draft ``block`` tokens at once from the features of ``taps``."""

    num_layers: int
    block: int
    noise_id: int
    taps: tuple[int, ...]
    markov_rank: int
    moe: MoEConfig


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """Sizes of the vision tower, for the shapes of its tensors."""

    hidden: int
    num_layers: int
    num_heads: int
    inner: int
    patch: int
    downsample: int
    max_tokens: int
    min_pixels: int
    max_wh_ratio: float | None


def require(reader: ConfigReader, fixed: Mapping[str, Any]) -> None:
    """Raise ConfigError for each key that does not hold its one supported value."""
    for key, value in fixed.items():
        found = reader.raw(key)
        if isinstance(found, bool) != isinstance(value, bool) or found != value:  # True == 1 in Python
            raise ConfigError(reader.name(key), f"must be {value!r}, not {found!r}")


def check_quantisation(reader: ConfigReader) -> None:
    require(reader, QUANTISATION)


def token_id(reader: ConfigReader, key: str) -> int:
    """A token id; unlike a count it may be 0."""
    value = reader.raw(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(reader.name(key), f"must be a token id, not {value!r}")
    return value


def layer_list(reader: ConfigReader, key: str) -> tuple[int, ...]:
    values = reader.raw(key)
    if not isinstance(values, list) or any(isinstance(v, bool) or not isinstance(v, int) for v in values):
        raise ConfigError(reader.name(key), f"must be a list of whole numbers, not {values!r}")
    return tuple(values)


def read_yarn(scaling: ConfigReader | None) -> Yarn | None:
    if scaling is None:
        return None
    key = "rope_type" if scaling.raw("rope_type") is not None else "type"
    scaling.choice(key, {"yarn": "yarn"})
    yarn = Yarn(
        scaling.number("factor"),
        scaling.number("beta_fast"),
        scaling.number("beta_slow"),
        scaling.integer("original_max_position_embeddings"),
    )
    if yarn.factor < 1:
        raise ConfigError(scaling.name("factor"), f"{yarn.factor} would shrink the context: must be at least 1")
    if yarn.beta_fast <= yarn.beta_slow:
        raise ConfigError(scaling.name("beta_fast"), f"must be above beta_slow ({yarn.beta_slow})")
    return yarn


def read_moe(text: ConfigReader, experts_key: str, chosen_key: str) -> MoEConfig:
    moe = MoEConfig(
        text.integer(experts_key, most=1 << 16),
        text.integer(chosen_key, most=1 << 10),
        text.integer("moe_intermediate_size", most=1 << 18),
        text.number("routed_scaling_factor"),
    )
    if moe.num_chosen > moe.num_experts:
        raise ConfigError(text.name(chosen_key), f"{moe.num_chosen} of {moe.num_experts} experts cannot be chosen")
    return moe


def read_engram(text: ConfigReader, num_layers: int) -> EngramConfig | None:
    if not text.raw("engram_layer_ids"):
        return None
    layers = layer_list(text, "engram_layer_ids")
    if list(layers) != sorted(set(layers)) or layers[0] < 0 or layers[-1] >= num_layers:
        raise ConfigError(text.name("engram_layer_ids"), f"{list(layers)} must be ascending layers, each once")
    if not text.raw("engram_compressed_vocab_size"):
        raise ConfigError(text.name("engram_compressed_vocab_size"), "must be set: Engram reads compressed token ids")
    stated = text.raw("engram_num_embeddings")
    engram = EngramConfig(
        layers,
        text.integer("engram_max_ngram_size", most=16),
        text.integer("engram_vocab_size", most=1 << 30),
        text.integer("engram_n_heads", most=1 << 10),
        text.integer("engram_head_dim", most=1 << 14),
        token_id(text, "engram_pad_token_id"),
        () if stated is None else layer_list(text, "engram_num_embeddings"),
    )
    if engram.longest < 2:
        raise ConfigError(text.name("engram_max_ngram_size"), "must be at least 2")
    tables = len(layers) * (engram.longest - 1) * engram.num_heads
    if tables > MOST_TABLES:
        raise ConfigError(text.name("engram_n_heads"), f"make {tables} tables, more than the {MOST_TABLES} at most")
    if engram.head_dim % 32:
        raise ConfigError(
            text.name("engram_head_dim"), f"{engram.head_dim} is no multiple of 32: scales cover 32 columns"
        )
    return engram


def read_draft(text: ConfigReader, draft_layers: int, num_layers: int) -> DraftConfig:
    taps = layer_list(text, "dspark_target_layer_ids")
    if not taps or list(taps) != sorted(set(taps)) or taps[0] < 0 or taps[-1] >= num_layers:
        raise ConfigError(text.name("dspark_target_layer_ids"), f"{list(taps)} must be ascending layers, each once")
    return DraftConfig(
        draft_layers,
        text.integer("dspark_block_size", most=64),
        token_id(text, "dspark_noise_token_id"),
        taps,
        text.integer("dspark_markov_rank", most=1 << 14),
        read_moe(text, "dspark_n_routed_experts", "dspark_num_experts_per_tok"),
    )


def read_vision(vision: ConfigReader) -> VisionConfig:
    ratio = None if vision.raw("max_wh_ratio") is None else vision.number("max_wh_ratio")
    if ratio is not None and ratio < 1:
        raise ConfigError(vision.name("max_wh_ratio"), f"must be null or a number from 1, not {ratio!r}")
    config = VisionConfig(
        vision.integer("hidden_size", most=1 << 16),
        vision.integer("num_hidden_layers", most=1024),
        vision.integer("num_attention_heads", most=1 << 10),
        vision.integer("intermediate_size", most=1 << 18),
        vision.integer("patch_size", most=1 << 6),
        vision.integer("downsample_ratio", most=64),
        vision.integer("max_image_tokens"),
        vision.integer("min_pixels"),
        ratio,
    )
    if config.hidden % (4 * config.num_heads):
        words = f"{config.hidden} is no multiple of 4 x {config.num_heads} heads: rows and columns turn pairs of values"
        raise ConfigError(vision.name("hidden_size"), words)
    if config.max_tokens < LEAST_IMAGE_TOKENS:
        words = f"must be at least {LEAST_IMAGE_TOKENS}: a beginning, a cell, the end of its line, an end"
        raise ConfigError(vision.name("max_image_tokens"), words)
    if (patches := config.max_tokens * config.downsample**2) > MOST_PATCHES:
        words = f"{config.max_tokens} make pictures of {patches} patches, more than the {MOST_PATCHES} at most"
        raise ConfigError(vision.name("max_image_tokens"), words)
    return config
