"""Reads the tensors of the vision tower and the aligner. Computes nothing."""

from __future__ import annotations

import torch

from headrace.kernels.ops import Ops, Weight

from .config_parts import VisionConfig
from .params import BiasedParams, VisionBlockParams, VisionParams
from .reading import TensorReader


def read_vision(config: VisionConfig, reader: TensorReader, ops: Ops) -> VisionParams:
    """Packed for ``ops``; the reader has checked names and shapes."""
    return VisionParams(
        patches=_biased("vision.patch_embed.proj", reader, ops),
        blocks=tuple(_block(f"vision.blocks.{number}.", reader, ops) for number in range(config.num_layers)),
        norm=reader.floats("vision.norm.weight"),
        align_in=_biased("aligner.w1", reader, ops),
        align_out=_biased("aligner.w2", reader, ops),
        marks=torch.stack([reader.floats(f"image_{name}") for name in ("start", "newline", "end")]),
    )


def _block(at: str, reader: TensorReader, ops: Ops) -> VisionBlockParams:
    return VisionBlockParams(
        attention_norm=reader.floats(f"{at}norm1.weight"),
        qkv=_biased(f"{at}attn.wqkv", reader, ops),
        out=_biased(f"{at}attn.wo", reader, ops),
        mlp_norm=reader.floats(f"{at}norm2.weight"),
        gate_up=_packed(f"{at}mlp.w1.weight", reader, ops),
        down=_packed(f"{at}mlp.w2.weight", reader, ops),
    )


def _biased(name: str, reader: TensorReader, ops: Ops) -> BiasedParams:
    return BiasedParams(_packed(f"{name}.weight", reader, ops), reader.floats(f"{name}.bias"))


def _packed(name: str, reader: TensorReader, ops: Ops) -> Weight:
    return ops.pack_weight([reader.plain(name)])
