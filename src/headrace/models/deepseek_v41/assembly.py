"""Wires a V4.1 model out of a checkpoint. Everything that can be wrong is checked on headers before the first read."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

from headrace.contract.errors import ConfigError, ModelError
from headrace.kernels.ops import Ops, Weight
from headrace.models.dense.assembly import Progress
from headrace.models.dense.config_reader import configuration_of
from headrace.models.weights.checkpoint import Checkpoint
from headrace.models.weights.dummy import DummyCheckpoint
from headrace.models.weights.hf_directory import HFDirectory
from headrace.parallel.eplb.balancer import ExpertShare

from .arithmetic import Arithmetic
from .config import V41Config, derive_v41
from .config_parts import MoEConfig
from .dummy import DummyTensors
from .engram_hash import HashTables, hash_tables, table_primes
from .forward import V41Model
from .params import (
    AttentionParams,
    CompressorParams,
    DraftParams,
    EngramParams,
    ExpertParams,
    IndexerParams,
    IndexKeyParams,
    LayerParams,
    MixParams,
    MoEParams,
    V41Params,
)
from .reading import RawCheckpoint, TensorReader
from .records import kv_layout
from .tensor_ops import inverse_frequencies, rotary_table
from .tensor_table import Table, tensor_table
from .vision import Tower
from .vision_reading import read_vision

TokenMap = Callable[[], Tensor]
ROUTED = re.compile(r"layers\.\d+\.ffn\.experts\.")


def load_v41(
    checkpoint: Checkpoint,
    ops: Ops,
    progress: Progress | None,
    mode: str,
    token_map: TokenMap | None,
    share: ExpertShare | None = None,
) -> V41Model:
    """Build the model. ``token_map`` gives compressed ids (vocab,) int32; needed when the model has Engram. ``share``:
    of the backbone's routed experts only a rank's are read.

    Errors: ConfigError for a setting, ModelError for a tensor or a token map that does not fit.
    """
    config, table = check(checkpoint)
    reader = TensorReader(_raw(checkpoint, table), table)
    if isinstance(checkpoint, DummyCheckpoint):
        token_map = token_map or (lambda: torch.arange(config.vocab_size, dtype=torch.int32))
    compressed = _token_map(config, checkpoint.source, token_map)
    params = _Assembly(config, reader, ops, progress, share).model(compressed)
    return V41Model(config, params, kv_layout(config), ops, mode, share)


def load_tower(checkpoint: Checkpoint, ops: Ops, mode: str) -> Tower:
    """The model's eyes alone: nothing else of the checkpoint is read, but its headers are checked as a whole.

    Errors: ConfigError for a setting, ModelError for a tensor that does not fit.
    """
    config, table = check(checkpoint)
    reader = TensorReader(_raw(checkpoint, table), table)
    return Tower(config, read_vision(config.vision, reader, ops), Arithmetic(ops, mode))


def v41_bytes(checkpoint: Checkpoint, share: ExpertShare | None = None) -> int:
    """Least memory that ``load_v41`` takes: matrices in bfloat16, rotary tables. Engram tables stay in their file."""
    config, table = check(checkpoint)
    TensorReader(_raw(checkpoint, table), table)
    rotary = (2 * config.max_positions + config.draft.block) * config.rope_dims * 4
    read = (t for name, t in table.items() if "engram.embed" not in name or isinstance(checkpoint, DummyCheckpoint))
    elsewhere = 0.0
    if share is not None:
        here = len(set(share.held(config.moe.num_experts))) / config.moe.num_experts
        routed = (t for name, t in table.items() if ROUTED.match(name) and name.endswith(".weight"))
        elsewhere = (1 - here) * sum(2 * prod(t.shape) for t in routed)
    return rotary + sum(2 * prod(t.shape) for t in read) - int(elsewhere)


def check(checkpoint: Checkpoint) -> tuple[V41Config, Table]:
    """The configuration and the tensors it asks for. Errors: ConfigError."""
    with configuration_of(checkpoint.source):
        return _checked(derive_v41(checkpoint.config))


def _checked(config: V41Config) -> tuple[V41Config, Table]:
    rows: tuple[int, ...] = ()
    if config.engram is not None:
        rows = tuple(sum(primes) for primes in table_primes(config.engram))
        if config.engram.num_rows and config.engram.num_rows != rows:
            raise ConfigError("text_config.engram_num_embeddings", f"{config.engram.num_rows}, the primes give {rows}")
    return config, tensor_table(config, rows)


def _raw(checkpoint: Checkpoint, table: Table) -> RawCheckpoint:
    """The checkpoint's tensors as stored. Errors: ModelError for a format that has no such tensors."""
    if isinstance(checkpoint, DummyCheckpoint):
        return DummyTensors(checkpoint, table)
    if not isinstance(checkpoint, HFDirectory):
        raise ModelError(checkpoint.source, "this architecture is read from a directory of safetensors only")
    return checkpoint


def _token_map(config: V41Config, source: str, token_map: TokenMap | None) -> Tensor:
    if config.engram is None:
        return torch.empty(0, dtype=torch.int32)
    if token_map is None:
        raise ModelError(source, "has Engram tables, which need its tokenizer; it has none")
    compressed = token_map()
    if len(compressed) > config.vocab_size:
        raise ModelError(source, f"its tokenizer has {len(compressed)} ids, the weights {config.vocab_size}")
    if config.engram.pad_id >= len(compressed):
        words = f"{config.engram.pad_id} is none of the {len(compressed)} ids that the tokenizer has"
        raise ConfigError("text_config.engram_pad_token_id", words)
    # Rows of the embedding that no token has can only come in as ids; they hash like padding.
    spare = config.vocab_size - len(compressed)
    return torch.cat((compressed, compressed[config.engram.pad_id].repeat(spare)))


class _Assembly:
    """One pass over a checkpoint, layer by layer."""

    def __init__(
        self,
        config: V41Config,
        reader: TensorReader,
        ops: Ops,
        progress: Progress | None,
        share: ExpertShare | None,
    ) -> None:
        self.config, self.reader, self.ops, self.progress = config, reader, ops, progress
        self.share = share
        self.done, self.total = 0, config.num_layers + config.draft.num_layers + 1
        plain = inverse_frequencies(config.rope_theta, config.rope_dims, None)
        stretched = inverse_frequencies(config.compress_rope_theta, config.rope_dims, config.yarn)
        # A block drafted behind the last position reaches beyond the context; of those places nothing is ever emitted.
        self.window_rotary = rotary_table(plain, config.max_positions + config.draft.block)
        self.compressed_rotary = rotary_table(stretched, config.max_positions)

    def model(self, token_map: Tensor) -> V41Params:
        hashes = self._hashes(token_map)
        layers = tuple(self._layer(layer, hashes) for layer in range(self.config.num_layers))
        draft, vision = self._draft(), read_vision(self.config.vision, self.reader, self.ops)
        embedding, head = self._plain("embed.weight"), self._plain("head.weight")
        self._count()
        return V41Params(embedding, layers, self.reader.floats("norm.weight"), head, token_map, draft, vision)

    def _hashes(self, token_map: Tensor) -> dict[int, HashTables]:
        engram = self.config.engram
        if engram is None:
            return {}
        return dict(zip(engram.layers, hash_tables(engram, int(token_map.max()) + 1)))

    def _layer(self, layer: int, hashes: dict[int, HashTables]) -> LayerParams:
        topology, at = self.config.topology, f"layers.{layer}."
        params = self._block(
            at,
            self.config.moe,
            self.compressed_rotary if topology.ratios[layer] else self.window_rotary,
            compressor=self._compressor(f"{at}attn.compressor.", layer) if topology.owns_kv(layer) else None,
            index_keys=self._index_keys(f"{at}attn.indexer.") if topology.owns_index_keys(layer) else None,
            indexer=self._indexer(f"{at}attn.indexer.") if topology.owns_index(layer) else None,
            engram=self._engram(f"{at}engram.", hashes[layer]) if layer in hashes else None,
        )
        self._count()
        return params

    def _block(
        self,
        at: str,
        moe: MoEConfig,
        rotary: Tensor,
        *,
        compressor: CompressorParams | None = None,
        index_keys: IndexKeyParams | None = None,
        indexer: IndexerParams | None = None,
        engram: EngramParams | None = None,
    ) -> LayerParams:
        return LayerParams(
            attention_norm=self.reader.floats(f"{at}attn_norm.weight"),
            attention_mix=self._mix(f"{at}hc_attn_"),
            attention=self._attention(f"{at}attn."),
            expert_norm=self.reader.floats(f"{at}ffn_norm.weight"),
            expert_mix=self._mix(f"{at}hc_ffn_"),
            moe=self._moe(f"{at}ffn.", self._held(moe, at)),
            rotary=rotary,
            compressor=compressor,
            index_keys=index_keys,
            indexer=indexer,
            engram=engram,
        )

    def _mix(self, at: str) -> MixParams:
        floats = self.reader.floats
        return MixParams(self.ops.pack_weight(floats(f"{at}fn")), floats(f"{at}scale"), floats(f"{at}base"))

    def _attention(self, at: str) -> AttentionParams:
        groups = self.reader.matrix(f"{at}wo_a").split(self.config.o_rank)
        return AttentionParams(
            sink=self.reader.floats(f"{at}attn_sink"),
            q_down=self._coded(f"{at}wq_a"),
            q_norm=self.reader.floats(f"{at}q_norm.weight"),
            q_up=self._coded(f"{at}wq_b"),
            kv=self._coded(f"{at}wkv"),
            kv_norm=self.reader.floats(f"{at}kv_norm.weight"),
            out_groups=tuple(self.ops.pack_weight(group.contiguous()) for group in groups),
            out_up=self._coded(f"{at}wo_b"),
        )

    def _held(self, moe: MoEConfig, at: str) -> list[int]:
        """The routed experts to read: draft layers keep all of theirs on every rank."""
        if self.share is None or at.startswith("mtp."):
            return list(range(moe.num_experts))
        return self.share.held(moe.num_experts)

    def _moe(self, at: str, held: list[int]) -> MoEParams:
        read = {number: self._expert(f"{at}experts.{number}.") for number in sorted(set(held))}
        bias = self.reader.floats(f"{at}gate.bias")
        own = self.reader.has(f"{at}gate.bias_vl")
        return MoEParams(
            gate=self._plain(f"{at}gate.weight"),
            bias=bias,
            image_bias=self.reader.floats(f"{at}gate.bias_vl") if own else bias,
            experts=tuple(read[number] for number in held),
            shared=self._expert(f"{at}shared_experts."),
        )

    def _expert(self, at: str) -> ExpertParams:
        gate, up, down = (self.reader.matrix(f"{at}{part}") for part in ("w1", "w3", "w2"))
        if self.share is not None and any(part.dtype != torch.bfloat16 for part in (gate, up, down)):
            raise ModelError(at, "holds weights beyond bfloat16: such an expert cannot travel between ranks")
        return ExpertParams(self.ops.pack_weight([gate, up]), self.ops.pack_weight([down]))

    def _compressor(self, at: str, layer: int) -> CompressorParams:
        parts = ["wgate", "wkv"] if self.config.topology.ratios[layer] == 2 else ["wkv"]
        project = self._plain(*(f"{at}{part}.weight" for part in parts))
        return CompressorParams(project, self.reader.floats(f"{at}norm.weight"))

    def _index_keys(self, at: str) -> IndexKeyParams:
        return IndexKeyParams(self._plain(f"{at}wk.weight"), self.reader.floats(f"{at}k_norm.weight"))

    def _indexer(self, at: str) -> IndexerParams:
        return IndexerParams(self._coded(f"{at}wq_b"), self._plain(f"{at}weights_proj.weight"))

    def _engram(self, at: str, tables: HashTables) -> EngramParams:
        table, scales = self.reader.mapped(f"{at}embed")
        gate = self.reader.floats(f"{at}q_weight") * self.reader.floats(f"{at}k_weight")
        return EngramParams(table, scales, tables, self._coded(f"{at}wkv"), gate)

    def _draft(self) -> DraftParams:
        draft, last = self.config.draft, f"mtp.{self.config.draft.num_layers - 1}."
        layers = []
        for layer in range(draft.num_layers):
            layers.append(self._block(f"mtp.{layer}.", draft.moe, self.window_rotary))
            self._count()
        return DraftParams(
            layers=tuple(layers),
            main_project=self._coded("mtp.0.main_proj"),
            main_norm=self.reader.floats("mtp.0.main_norm.weight"),
            norm=self.reader.floats(f"{last}norm.weight"),
            markov_embed=self._plain(f"{last}markov_head.embed.weight"),
            markov_head=self._plain(f"{last}markov_head.head.weight"),
            confidence=self._plain(f"{last}confidence_head.proj.weight"),
        )

    def _coded(self, *names: str) -> Weight:
        return self.ops.pack_weight([self.reader.matrix(name) for name in names])

    def _plain(self, *names: str) -> Weight:
        return self.ops.pack_weight([self.reader.plain(name) for name in names])

    def _count(self) -> None:
        self.done += 1
        if self.progress:
            self.progress(self.done, self.total)
