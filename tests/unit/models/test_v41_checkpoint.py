"""The released checkpoint layout: what is read from it, and every way in which a file can be refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from v41_data import VARIANTS, folder, model

from headrace.contract.errors import ConfigError, ModelError
from headrace.kernels.resolve import resolve_ops
from headrace.models.deepseek_v41.assembly import check, load_v41, v41_bytes
from headrace.models.deepseek_v41.reading import TensorReader
from headrace.models.registry import architectures, load_model, require_memory
from headrace.models.weights import open_checkpoint

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def tensors() -> Tensors:
    return {name: t for shard in SHARDS for name, t in load_file(folder() / shard).items()}


@pytest.fixture
def rewrite(tmp_path: Path, tensors: Tensors) -> Callable[..., Path]:
    """``rewrite(change)``: the checkpoint in one file, after ``change(tensors, config)``."""

    def write(change: Callable[[Tensors, dict[str, object]], None]) -> Path:
        copied, config = dict(tensors), json.loads((folder() / "config.json").read_text())
        change(copied, config)
        save_file(copied, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return write


def read(path: Path) -> TensorReader:
    checkpoint = open_checkpoint(path)
    _, table = check(checkpoint)
    return TensorReader(checkpoint, table)  # type: ignore[arg-type]


def test_the_architecture_is_registered() -> None:
    assert "DeepseekV41ForCausalLM" in architectures()


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_golden_checkpoints_are_covered_exactly(variant: str) -> None:
    checkpoint = open_checkpoint(folder(variant))
    _, table = check(checkpoint)
    assert set(table) == set(checkpoint.names())


def test_a_prefix_changes_nothing(rewrite: Callable[..., Path]) -> None:
    def prefix(tensors: Tensors, _: object) -> None:
        for name in list(tensors):
            tensors[f"model.{name}"] = tensors.pop(name)

    reader = read(rewrite(prefix))
    assert torch.equal(reader.matrix("layers.0.attn.wkv"), read(folder()).matrix("layers.0.attn.wkv"))


def test_a_missing_image_bias_is_the_text_one(rewrite: Callable[..., Path]) -> None:
    path = rewrite(lambda tensors, _: tensors.pop("layers.2.ffn.gate.bias_vl"))
    of = load_v41(open_checkpoint(path), resolve_ops("reference"), None, "float32", lambda: torch.arange(1024).int())
    assert torch.equal(of.params.layers[2].moe.image_bias, of.params.layers[2].moe.bias)
    assert not torch.equal(of.params.layers[3].moe.image_bias, of.params.layers[3].moe.bias)


def test_tied_copies_of_draft_layers_are_passed_over(rewrite: Callable[..., Path]) -> None:
    def copy(tensors: Tensors, _: object) -> None:
        tensors["mtp.0.embed.weight"] = torch.zeros(3)
        tensors["mtp.1.head.weight"] = torch.zeros(3)

    assert read(rewrite(copy))


def put(name: str, tensor: Tensor) -> Callable[[Tensors, object], None]:
    return lambda tensors, _: tensors.update({name: tensor})


def drop(name: str) -> Callable[[Tensors, object], None]:
    return lambda tensors, _: tensors.__delitem__(name)


REFUSED: dict[str, tuple[str, Callable[[Tensors, object], None]]] = {
    "missing": ("layers.4.attn.wkv.weight", drop("layers.4.attn.wkv.weight")),
    "scale missing": ("layers.4.attn.wkv.scale", drop("layers.4.attn.wkv.scale")),
    "expert incomplete": ("ffn.experts.7.w3", drop("layers.1.ffn.experts.7.w3.weight")),
    "expert scale missing": ("ffn.experts.0.w2.scale", drop("layers.1.ffn.experts.0.w2.scale")),
    "one expert too many": (
        "ffn.experts.8.w1.weight",
        put("layers.1.ffn.experts.8.w1.weight", torch.zeros(64, 96, dtype=torch.int8)),
    ),
    "both prefixes": ("both with and without", put("model.norm.weight", torch.zeros(192, dtype=torch.bfloat16))),
    "wrong shape": ("layers.0.attn.attn_sink", put("layers.0.attn.attn_sink", torch.zeros(9))),
    "narrow sink": ("stored as BF16", put("layers.0.attn.attn_sink", torch.zeros(8, dtype=torch.bfloat16))),
    "narrow mixing": ("stored as BF16", put("layers.0.hc_attn_fn", torch.zeros(24, 768, dtype=torch.bfloat16))),
    "wide matrix": ("stored as F32", put("layers.0.attn.wkv.weight", torch.zeros(512, 192))),
    "mixing norm": ("mixing matrix", put("layers.0.hc_attn_norm.weight", torch.zeros(192))),
    "no place": ("layers.0.attn.k_proj.weight", put("layers.0.attn.k_proj.weight", torch.zeros(2))),
    "compressor where none is": (
        "layers.2.attn.compressor.norm.weight",
        put("layers.2.attn.compressor.norm.weight", torch.zeros(512, dtype=torch.bfloat16)),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, rewrite: Callable[..., Path]) -> None:
    words, change = REFUSED[name]
    with pytest.raises(ModelError, match=words):
        read(rewrite(change))


def test_a_scale_that_is_no_number_is_refused(rewrite: Callable[..., Path], tensors: Tensors) -> None:
    scale = tensors["layers.0.attn.wkv.scale"].view(torch.uint8).clone()
    scale[3, 2] = 255
    path = rewrite(put("layers.0.attn.wkv.scale", scale.view(torch.float8_e8m0fnu)))
    with pytest.raises(ModelError, match=r"layers\.0\.attn\.wkv\.scale"):
        read(path).matrix("layers.0.attn.wkv")


@pytest.mark.parametrize(
    "name", ["layers.3.ffn.gate.bias", "layers.1.attn.indexer.wk.weight", "layers.0.attn.wkv.weight"]
)
def test_a_value_that_is_not_finite_is_refused(rewrite: Callable[..., Path], tensors: Tensors, name: str) -> None:
    """A gate or an index key would only choose worse, and nobody would see it."""
    values = tensors[name].clone()
    if values.dtype == torch.float8_e4m3fn:
        values.view(torch.uint8).view(-1)[7] = 0x7F
    else:
        values.view(-1)[7] = torch.nan if values.dim() == 1 else torch.inf
    reader = read(rewrite(put(name, values)))
    with pytest.raises(ModelError, match=rf"{re.escape(name)}: holds a value that is not finite"):
        reader.matrix(name.removesuffix(".weight")) if "wkv" in name else reader.floats(name)


def test_table_rows_are_held_against_the_primes(rewrite: Callable[..., Path]) -> None:
    def shrink(_: Tensors, config: dict[str, dict[str, object]]) -> None:
        config["text_config"]["engram_num_embeddings"] = [3144, 3425]

    with pytest.raises(ConfigError, match="engram_num_embeddings"):
        check(open_checkpoint(rewrite(shrink)))


def test_a_shard_that_the_index_names_must_exist(tmp_path: Path) -> None:
    shutil.copytree(folder(), tmp_path / "m", ignore=shutil.ignore_patterns("w16", "goldens*", SHARDS[1]))
    with pytest.raises(ModelError, match=SHARDS[1]):
        open_checkpoint(tmp_path / "m")


def test_engram_needs_a_tokenizer_that_fits() -> None:
    checkpoint, ops = open_checkpoint(folder()), resolve_ops("reference")
    with pytest.raises(ModelError, match="tokenizer"):
        load_model(checkpoint, ops, exact=True)
    with pytest.raises(ModelError, match="1025 ids"):
        load_model(checkpoint, ops, exact=True, token_map=lambda: torch.arange(1025).int())
    with pytest.raises(ConfigError, match=r"engram_pad_token_id.*2 ids"):
        load_model(checkpoint, ops, exact=True, token_map=lambda: torch.arange(2).int())


def test_ids_without_a_token_hash_like_padding() -> None:
    of = load_v41(
        open_checkpoint(folder()), resolve_ops("reference"), None, "float32", lambda: torch.arange(1000).int()
    )
    assert of.params.token_map[1000:].tolist() == [2] * 24


def test_other_formats_are_refused_in_words() -> None:
    """A GGUF file could state this architecture one day; its tensors have other names and storage."""

    class Other:
        source, config = "model.gguf", json.loads((folder() / "config.json").read_text())

    with pytest.raises(ModelError, match="safetensors only"):
        v41_bytes(Other())  # type: ignore[arg-type]


def test_memory_is_asked_for_before_anything_is_read() -> None:
    checkpoint = open_checkpoint(folder())
    assert v41_bytes(checkpoint) > 14_000_000
    with pytest.raises(ModelError, match="need"):
        require_memory(checkpoint, 1 << 20)


def test_engram_tables_stay_in_the_mapped_file() -> None:
    """The process maps the shard, and the table's memory lies within that mapping: nothing was copied."""
    engram = model(VARIANTS[0]).params.layers[1].engram
    assert engram is not None
    at = engram.table.data_ptr()
    ranges = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if SHARDS[0] in line]
    bounds = [tuple(int(end, 16) for end in line[0].split("-")) for line in ranges]
    assert any(low <= at < high for low, high in bounds)


def test_every_code_and_scale_comes_back(tensors: Tensors) -> None:
    """Matrices by the plainest formula: torch's own 8-bit types, tiles repeated, nibbles looked up."""
    reader = read(folder())
    weight, scale = (tensors[f"layers.3.attn.wo_a.{part}"] for part in ("weight", "scale"))
    tiles = torch.kron(scale.float(), torch.ones(32, 32))[:64, :2048]
    assert torch.equal(reader.matrix("layers.3.attn.wo_a").float(), weight.float() * tiles)
    packed, scale = (tensors[f"layers.3.ffn.experts.5.w2.{part}"] for part in ("weight", "scale"))
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    numbers = packed.view(torch.uint8).long()
    plain = torch.zeros(192, 64)
    plain[:, 0::2], plain[:, 1::2] = values[numbers % 16], values[numbers // 16]
    plain *= scale.float().repeat_interleave(32, 1)
    assert torch.equal(reader.matrix("layers.3.ffn.experts.5.w2").float(), plain)
