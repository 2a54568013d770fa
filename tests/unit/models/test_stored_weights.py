"""Weights in the storage of their file: the values are those of ``tensor``, and the model keeps its promises."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from gguf_files import write_gguf
from paged_runner import PagedRunner
from tiny_models import CONFIGS, random_tensors, write_directory
from torch import Tensor

from headrace.kernels.quant import KINDS as KINDS_OF_BLOCKS
from headrace.kernels.quant import QuantRows, packed_bytes, row_bytes
from headrace.kernels.resolve import resolve_ops
from headrace.models.context import Model
from headrace.models.registry import load_model
from headrace.models.weights import open_checkpoint
from headrace.models.weights.checkpoint import Checkpoint

PROMPT = torch.randint(0, 61, (40,), generator=torch.Generator().manual_seed(8)).tolist()
# One projection of mixed formats; matrices of 48 columns cannot be blocks of 32 and stay float32.
KINDS = {"q_proj": "Q5_0", "k_proj": "Q4_1", "v_proj": "Q8_0", "o_proj": "Q4_0", "gate_proj": "Q5_1", "up_proj": "F16"}


def encode(name: str, tensor: Tensor) -> tuple[tuple[int, ...], int, bytes]:
    wanted = "Q8_0" if "embed_tokens" in name or "lm_head" in name else KINDS.get(name.split(".")[-2], "F32")
    kind = GGMLQuantizationType[wanted if tensor.dim() > 1 and tensor.shape[-1] % 32 == 0 else "F32"]
    return tuple(tensor.shape), int(kind), quantize(tensor.contiguous().numpy(), kind).tobytes()


def mixed(path: Path, family: str) -> Checkpoint:
    config = CONFIGS[family]
    return open_checkpoint(write_gguf(path / f"{family}.gguf", config, random_tensors(config), encode))


def run(model: Model, cuts: list[int], backend: str = "cpu") -> Tensor:
    runner = PagedRunner(model, resolve_ops(backend, strict=True), 1, 40, block_size=16)
    return torch.cat([runner.logits({0: PROMPT[a:b]})[0] for a, b in pairwise(cuts)])


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3"])
def test_stored_values_are_those_of_the_tensor(family: str, tmp_path: Path) -> None:
    checkpoint, original = mixed(tmp_path, family), random_tensors(CONFIGS[family])
    kinds = set()
    for name, tensor in original.items():
        stored = checkpoint.stored(name)
        kinds.add(stored.kind if isinstance(stored, QuantRows) else str(stored.dtype))
        values = stored.dequantise() if isinstance(stored, QuantRows) else stored.float()
        assert torch.equal(values, checkpoint.tensor(name))
        torch.testing.assert_close(values, tensor, atol=0.13 * float(tensor.abs().max()), rtol=0)  # 4 bits
    assert kinds >= {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "torch.float16", "torch.float32"}


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3"])
def test_bits_do_not_depend_on_the_step(family: str, tmp_path: Path) -> None:
    ops, checkpoint = resolve_ops("cpu", strict=True), mixed(tmp_path, family)
    model = load_model(checkpoint, ops)
    whole = run(model, [0, 40])
    assert torch.equal(run(model, [0, 3, 4, 20, 40]), whole)
    assert torch.equal(run(model, list(range(41))), whole)
    batch = PagedRunner(model, ops, 3, 40, block_size=3)
    first = batch.logits({1: PROMPT[::-1], 0: PROMPT[:17]})[1]
    second = batch.logits({2: PROMPT[5:], 0: PROMPT[17:]})[1]
    assert torch.equal(torch.cat((first, second)), whole)

    exact = run(load_model(checkpoint, ops, exact=True), [0, 40])
    assert 0 < float((whole - exact).abs().mean()) < 0.05  # activations were rounded; logits are of order one


def test_the_reference_computes_stored_weights_exactly(tmp_path: Path) -> None:
    checkpoint, ops = mixed(tmp_path, "llama"), resolve_ops("reference")
    stored, exact = (run(load_model(checkpoint, ops, exact=e), [0, 40], "reference") for e in (False, True))
    assert torch.equal(stored, exact)


def test_bfloat16_directories_lose_nothing(tmp_path: Path) -> None:
    config, ops = CONFIGS["qwen3"], resolve_ops("cpu", strict=True)
    tensors = {name: tensor.bfloat16() for name, tensor in random_tensors(config).items()}
    checkpoint = open_checkpoint(write_directory(tmp_path, config, tensors))
    stored, exact = load_model(checkpoint, ops), load_model(checkpoint, ops, exact=True)
    assert torch.equal(run(stored, [0, 40]), run(exact, [0, 40]))
    assert 2 * stored.params.embedding.nbytes == exact.params.embedding.nbytes  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", KINDS_OF_BLOCKS)
def test_the_size_once_packed_is_known_from_the_kind(kind: str) -> None:
    """64 rows fill their panels, so nothing is padded and the least size is the size."""
    rows = QuantRows(kind, 64, 512, np.zeros((64, row_bytes(kind, 512)), np.uint8))
    assert packed_bytes(kind, 64 * 512) == resolve_ops("cpu", strict=True).pack_weight([rows]).nbytes  # type: ignore[attr-defined]


def test_a_model_that_grows_when_it_is_packed_is_counted_as_packed(tmp_path: Path) -> None:
    checkpoint = mixed(tmp_path, "llama")
    name = "model.layers.0.self_attn.q_proj.weight"
    assert checkpoint.packed_bytes(name) * 22 == checkpoint.stored(name).data.nbytes * 34  # type: ignore[union-attr]


@pytest.mark.parametrize("exact", [False, True])
def test_progress_counts_every_tensor(exact: bool, tmp_path: Path) -> None:
    checkpoint, seen = mixed(tmp_path, "gemma3"), []
    load_model(checkpoint, resolve_ops("cpu"), exact=exact, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i + 1, len(checkpoint.names())) for i in range(len(checkpoint.names()))]
