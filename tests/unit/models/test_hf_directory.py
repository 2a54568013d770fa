"""Hugging Face directories: one file, shards, other dtypes, and every way to be broken."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import CONFIGS, random_tensors, write_directory

from headrace.contract.errors import ConfigError, ModelError
from headrace.kernels.resolve import resolve_ops
from headrace.models.registry import load_model
from headrace.models.weights import open_checkpoint

CONFIG = CONFIGS["llama"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_directory(tmp_path / "model", CONFIG, random_tensors(CONFIG))


@pytest.mark.parametrize("num_shards", [1, 3])
def test_tensors_come_back(num_shards: int, tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    checkpoint = open_checkpoint(write_directory(tmp_path, CONFIG, tensors, num_shards))
    assert checkpoint.config == CONFIG
    assert set(checkpoint.names()) == set(tensors)
    assert all(torch.equal(checkpoint.tensor(name), tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_become_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in random_tensors(CONFIG).items()}
    checkpoint = open_checkpoint(write_directory(tmp_path, CONFIG, tensors))
    for name, tensor in tensors.items():
        assert checkpoint.tensor(name).dtype == torch.float32
        assert torch.equal(checkpoint.tensor(name), tensor.float())


def test_tensors_are_copies(directory: Path) -> None:
    checkpoint = open_checkpoint(directory)
    checkpoint.tensor("model.norm.weight").zero_()
    assert checkpoint.tensor("model.norm.weight").any()


def test_a_foreign_file_beside_the_weights_is_named(tmp_path: Path) -> None:
    """Without an index every file counts: the one that is too many is what to look at."""
    path = write_directory(tmp_path, CONFIG, random_tensors(CONFIG))
    save_file({"other": torch.zeros(2)}, path / "samples.safetensors")
    with pytest.raises(ModelError, match=r"samples\.safetensors \(read, as all 2 .*index\.json is missing\): other"):
        load_model(open_checkpoint(path), resolve_ops("reference"))


def test_an_error_in_the_configuration_names_the_folder(tmp_path: Path) -> None:
    path = write_directory(tmp_path, CONFIG | {"hidden_size": 0}, random_tensors(CONFIG))
    with pytest.raises(ConfigError, match=f"^hidden_size: .*{path}"):
        load_model(open_checkpoint(path), resolve_ops("reference"))


def break_config(directory: Path, raw: str) -> None:
    (directory / "config.json").write_text(raw)


def cut_weights(directory: Path, keep: int) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])


def huge_header(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + bytes(100))


def twice(directory: Path) -> None:
    save_file({"model.norm.weight": torch.ones(32)}, directory / "other.safetensors")


BROKEN = {
    "no config": (lambda d: (d / "config.json").unlink(), "holds no config.json: a model folder has"),
    "config is no JSON": (lambda d: break_config(d, "{"), "config.json: is not valid JSON"),
    "config is deep": (lambda d: break_config(d, "[" * 200000), "config.json: is not valid JSON"),
    "config is a list": (lambda d: break_config(d, "[]"), "config.json: is not a JSON object"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "no \\*.safetensors"),
    "short file": (lambda d: cut_weights(d, -4), "model.safetensors: is not a whole"),
    "empty file": (lambda d: cut_weights(d, 0), "model.safetensors: is not a whole"),
    "header cut": (lambda d: cut_weights(d, 40), "model.safetensors: is not a whole"),
    "huge header": (huge_header, "model.safetensors: is not a whole"),
    "tensor in two files": (twice, "model.norm.weight: is also in"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_directory(what: str, directory: Path) -> None:
    harm, message = BROKEN[what]
    harm(directory)
    with pytest.raises(ModelError, match=message):
        open_checkpoint(directory)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ("x", "weight_map"),
        ({"a": 1}, "weight_map"),
        ({"a": "../model.safetensors"}, "not a plain file name"),
        ({"a": "gone.safetensors"}, "does not exist"),
        ({"a": "model.safetensors"}, "a: is not in model.safetensors"),
    ],
)
def test_broken_index(weight_map: object, message: str, directory: Path) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelError, match=message):
        open_checkpoint(directory)


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.zeros(48, 32, dtype=torch.int8)
    checkpoint = open_checkpoint(write_directory(tmp_path, CONFIG, tensors))
    with pytest.raises(ModelError, match=r"up_proj\.weight: is stored as I8"):
        load_model(checkpoint, resolve_ops("reference"))


def test_no_tensor_is_read_before_all_are_checked(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    tensors["model.norm.weight"] = torch.ones(31)
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.ones(32)
    checkpoint = open_checkpoint(write_directory(tmp_path, CONFIG, tensors))
    seen: list[tuple[int, int]] = []
    with pytest.raises(ModelError, match=r"model\.norm\.weight: has shape \(31,\)"):
        load_model(checkpoint, resolve_ops("reference"), progress=lambda *step: seen.append(step))
    assert not seen


def test_tensor_without_a_place_is_refused(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.ones(32)
    checkpoint = open_checkpoint(write_directory(tmp_path, CONFIG, tensors))
    with pytest.raises(ModelError, match=r"q_proj\.bias.*no place"):
        load_model(checkpoint, resolve_ops("reference"))


def test_tied_head_and_derived_buffers_may_be_stored(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    tensors["lm_head.weight"] = torch.ones(61, 32)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    model = load_model(open_checkpoint(write_directory(tmp_path, CONFIG, tensors)), resolve_ops("reference"))
    assert model.params.head is model.params.embedding


def test_path_errors(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        open_checkpoint(tmp_path / "gone")
    with pytest.raises(ModelError, match=r"config\.json"):
        open_checkpoint(tmp_path)
    with pytest.raises(ModelError, match=r"config\.json"):
        open_checkpoint(tmp_path, dummy_seed=0)


@pytest.mark.parametrize("listed", [None, [], ["MambaForCausalLM"], "LlamaForCausalLM", [["x"]]])
def test_unknown_architecture(listed: object, directory: Path) -> None:
    (directory / "config.json").write_text(json.dumps({**CONFIG, "architectures": listed}))
    with pytest.raises(ModelError, match=r"architectures: .*unknown; known: .*Gemma3ForCausalLM, Llama"):
        load_model(open_checkpoint(directory), resolve_ops("reference"))


def test_bad_setting_beats_bad_tensor(directory: Path) -> None:
    (directory / "config.json").write_text(json.dumps({**CONFIG, "mlp_bias": True, "hidden_size": 36}))
    with pytest.raises(ConfigError, match="mlp_bias"):
        load_model(open_checkpoint(directory), resolve_ops("reference"))
