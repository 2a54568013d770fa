"""Who shares what: the layers' source maps, and every rule a configuration must keep for them to make sense.

A layer with ratio 0 sees its window only. A layer with ratio r > 0 also reads the compressed KV of its *KV source*,
at the entries that its *index source* selected with the keys of its *index-key source*. Checks only; holds no tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.contract.errors import ConfigError

RATIOS = (0, 1, 2)
MOST_CANDIDATE_BLOCK = 16
CANDIDATE_BLOCKS_STEP = 8


@dataclass(frozen=True, slots=True)
class Candidates:
    """From ``source`` on, index layers after it choose only among entries of the ``num_blocks`` best blocks."""

    source: int
    num_blocks: int
    block_size: int


@dataclass(frozen=True, slots=True)
class Topology:
    """Roles of the backbone's layers, each map (num_layers,); a layer without source maps to itself.

    first_decoder: the first layer of ratio 1 (P); the layers before it are the encoder half.
    """

    ratios: tuple[int, ...]
    kv_sources: tuple[int, ...]
    index_sources: tuple[int, ...]
    index_key_sources: tuple[int, ...]
    candidates: Candidates | None
    first_decoder: int

    @property
    def num_layers(self) -> int:
        return len(self.ratios)

    def owns_kv(self, layer: int) -> bool:
        return self.ratios[layer] > 0 and self.kv_sources[layer] == layer

    def owns_index(self, layer: int) -> bool:
        return self.ratios[layer] > 0 and self.index_sources[layer] == layer

    def owns_index_keys(self, layer: int) -> bool:
        return self.ratios[layer] > 0 and self.index_key_sources[layer] == layer

    def chooses_among_candidates(self, layer: int) -> bool:
        return self.candidates is not None and layer > self.candidates.source


def source_map(ids: tuple[int, ...], num_layers: int) -> tuple[int, ...]:
    """For each layer the greatest source not above it; itself below the first one."""
    return tuple(max((i for i in ids if i <= layer), default=layer) for layer in range(num_layers))


def derive_topology(
    ratios: tuple[int, ...],
    kv_ids: tuple[int, ...],
    index_ids: tuple[int, ...],
    index_key_ids: tuple[int, ...],
    candidates: Candidates | None,
    index_topk: int,
) -> Topology:
    """Maps out of source lists, checked; ``ratios`` of the backbone only. Errors: ConfigError with key and layer."""
    num_layers = len(ratios)
    named = {
        "kv_source_layer_ids": kv_ids,
        "index_source_layer_ids": index_ids,
        "index_k_source_layer_ids": index_key_ids,
    }
    for key, ids in named.items():
        _check_ids(key, ids, num_layers)
    extra = sorted(set(index_key_ids) - set(kv_ids))
    if extra:  # keys are made of the rows that a compressor makes
        raise ConfigError("index_k_source_layer_ids", f"layer {extra[0]} is not among kv_source_layer_ids")
    _check_ratios(ratios, min(kv_ids))
    _check_holds("index_k_source_layer_ids", index_key_ids, "kv_source_layer_ids", kv_ids)
    _check_holds("index_source_layer_ids", index_ids, "index_k_source_layer_ids", index_key_ids)
    maps = {key: source_map(ids, num_layers) for key, ids in named.items()}
    for key, ids in named.items():
        _check_same_ratio(key, maps[key], ratios, min(ids))
    kv, index, keys = maps.values()
    first_decoder = ratios.index(1)
    if kv[first_decoder] != first_decoder:
        raise ConfigError("kv_source_layer_ids", f"must hold layer {first_decoder}, the first of ratio 1")
    if candidates is not None:
        _check_candidates(candidates, index, ratios, index_topk)
    return Topology(ratios, kv, index, keys, candidates, first_decoder)


def _check_ids(key: str, ids: tuple[int, ...], num_layers: int) -> None:
    if not ids:
        raise ConfigError(key, "names no layer, but the model needs a source of compressed KV")
    if list(ids) != sorted(set(ids)) or ids[0] < 0 or ids[-1] >= num_layers:
        raise ConfigError(key, f"{list(ids)} must be ascending layers from 0 to {num_layers - 1}, each once")


def _check_ratios(ratios: tuple[int, ...], first_source: int) -> None:
    for layer, ratio in enumerate(ratios):
        if ratio not in RATIOS:
            raise ConfigError("compress_ratios", f"{ratio} at layer {layer}; known: {list(RATIOS)}")
        if layer >= first_source and ratio == 0:
            raise ConfigError(
                "compress_ratios", f"0 at layer {layer}, after the first KV source (layer {first_source})"
            )
        if layer < first_source and ratio > 0:
            raise ConfigError("compress_ratios", f"{ratio} at layer {layer}, before any KV source")
    if 1 not in ratios:
        raise ConfigError("compress_ratios", "has no layer of ratio 1: there is no decoder half")


def _check_same_ratio(key: str, sources: tuple[int, ...], ratios: tuple[int, ...], first: int) -> None:
    for layer in range(first, len(ratios)):
        if ratios[layer] != ratios[sources[layer]]:
            raise ConfigError(
                key,
                f"layer {layer} has compress ratio {ratios[layer]}, its source (layer {sources[layer]}) "
                f"{ratios[sources[layer]]}",
            )


def _check_holds(key: str, ids: tuple[int, ...], other_key: str, other: tuple[int, ...]) -> None:
    """Each list refines the next: then a layer's sources agree on the layer whose rows they speak of."""
    missing = sorted(set(other) - set(ids))
    if missing:
        raise ConfigError(key, f"lacks layer {missing[0]}, which {other_key} holds")


def _check_candidates(c: Candidates, index: tuple[int, ...], ratios: tuple[int, ...], index_topk: int) -> None:
    key = "candidate_source_layer_id"
    if not 0 <= c.source < len(ratios) or ratios[c.source] == 0 or index[c.source] != c.source:
        raise ConfigError(key, f"{c.source} is not among index_source_layer_ids")
    for layer in range(c.source, len(ratios)):
        if ratios[layer] != ratios[c.source]:
            raise ConfigError(key, f"layer {layer} has another compress ratio than layer {c.source}")
    if c.num_blocks % CANDIDATE_BLOCKS_STEP:
        raise ConfigError("candidate_topk_blocks", f"{c.num_blocks} is no multiple of {CANDIDATE_BLOCKS_STEP}")
    if c.block_size > MOST_CANDIDATE_BLOCK:
        raise ConfigError("candidate_block_size", f"{c.block_size} is above {MOST_CANDIDATE_BLOCK}")
    if c.num_blocks * c.block_size < index_topk:
        raise ConfigError("index_topk", f"{index_topk} entries do not fit {c.num_blocks} blocks of {c.block_size}")
