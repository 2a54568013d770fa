"""GGUF files give the tensors and the configuration of the Hugging Face layout."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf_files import write_gguf
from paged_runner import PagedRunner
from tiny_models import CONFIGS, random_tensors, write_directory

from headrace.contract.errors import ModelError
from headrace.kernels.resolve import resolve_ops
from headrace.models.registry import load_model
from headrace.models.weights import open_checkpoint

SAME_IN_GGUF = ("llama", "qwen2", "qwen3", "gemma3")


def equivalent(name: str) -> dict:
    """The configuration whose numbers are the defaults that a GGUF file cannot spell out."""
    if name != "gemma3":
        return CONFIGS[name]
    return {**CONFIGS[name], "sliding_window_pattern": 6, "query_pre_attn_scalar": 16}


@pytest.mark.parametrize("name", SAME_IN_GGUF)
def test_tensors_and_logits_equal_the_directory(name: str, tmp_path: Path) -> None:
    config, tensors = equivalent(name), random_tensors(CONFIGS[name])
    gguf = open_checkpoint(write_gguf(tmp_path / "model.gguf", config, tensors))
    assert set(gguf.names()) == set(tensors)
    for key, tensor in tensors.items():
        torch.testing.assert_close(gguf.tensor(key), tensor, rtol=0, atol=1e-7)
    ops, ids = resolve_ops("reference"), list(range(30))
    directory = open_checkpoint(write_directory(tmp_path / "hf", config, tensors))
    ours, theirs = (PagedRunner(load_model(c, ops), ops, 1, 30).logits({0: ids})[0] for c in (gguf, directory))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_missing_head_means_tied(tmp_path: Path) -> None:
    config, tensors = CONFIGS["llama"], random_tensors(CONFIGS["llama"])
    path = write_gguf(tmp_path / "tied.gguf", config, tensors)
    assert open_checkpoint(path).config["tie_word_embeddings"] is True
    tensors["lm_head.weight"] = torch.randn(61, 32)
    assert open_checkpoint(write_gguf(path, config, tensors)).config["tie_word_embeddings"] is False


def test_gemma_defaults(tmp_path: Path) -> None:
    config = open_checkpoint(write_gguf(tmp_path / "g.gguf", CONFIGS["gemma3"], {**tensors_of("gemma3")})).config
    assert config["sliding_window_pattern"] == 6
    assert config["rope_local_base_freq"] == 1e4
    assert config["rope_theta"] == 1e6
    assert config["query_pre_attn_scalar"] == 16
    listed = write_gguf(
        tmp_path / "l.gguf",
        CONFIGS["gemma3"],
        tensors_of("gemma3"),
        gemma3__attention__sliding_window_pattern=[True, False] * 3 + [True],
    )
    assert open_checkpoint(listed).config["layer_types"][:2] == ["sliding_attention", "full_attention"]


def tensors_of(name: str) -> dict[str, torch.Tensor]:
    return random_tensors(CONFIGS[name])


def test_rope_factors_divide_frequencies(tmp_path: Path) -> None:
    """The stored result of the llama3 rule gives the model that the rule gives."""
    config = CONFIGS["llama-untied-scaled"]
    tensors = random_tensors(config)
    factors = [1.0, 1.0, 4.0, 8.0]
    path = write_gguf(tmp_path / "f.gguf", config, tensors, rope_freqs__weight=factors)
    checkpoint = open_checkpoint(path)
    assert checkpoint.config["rope_scaling"] == {"rope_type": "frequency_factors", "factors": factors}
    model = load_model(checkpoint, resolve_ops("reference"))
    table = model.params.rope_tables[0]
    expected = torch.tensor([10000.0 ** (-i / 4) / factors[i] for i in range(4)]) * 50
    torch.testing.assert_close(table[50], torch.stack((expected.cos(), expected.sin())), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("general__architecture", "mamba", "general.architecture"),
        ("llama__expert_count", 8, "llama.expert_count"),
        ("llama__attention__weird", 1, "llama.attention.weird"),
        ("llama__rope__scaling__type", "yarn", "llama.rope.scaling.type"),
        ("llama__attention__head_count_kv", [2, 2, 2], "llama.attention.head_count_kv"),
        ("llama__rope__dimension_count", 4, "llama.rope.dimension_count"),
        ("llama__attention__value_length", 4, "llama.attention.value_length"),
        ("llama__attention__head_count", 0, "llama.attention.head_count"),
        ("llama__attention__head_count", 4.0, "llama.attention.head_count"),
        ("llama__rope__freq_base", 10000, "llama.rope.freq_base"),
        ("rope_freqs__weight", [[1.0] * 4], "rope_freqs.weight"),
    ],
)
def test_metadata_that_would_change_the_result_is_refused(key, value, named, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", CONFIGS["llama"], tensors_of("llama"), **{key: value})
    with pytest.raises(ModelError, match=named) as error:
        open_checkpoint(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_a_scaling_rule_beside_stored_factors_is_refused(kind: str, tmp_path: Path) -> None:
    rule = {"llama__rope__scaling__type": kind, "llama__rope__scaling__factor": 2.0}
    path = write_gguf(tmp_path / "m.gguf", CONFIGS["llama"], tensors_of("llama"), rope_freqs__weight=[1.0] * 4, **rule)
    with pytest.raises(ModelError, match=r"rope\.scaling\.type: .*beside rope_freqs\.weight"):
        open_checkpoint(path)


def test_unknown_architecture_lists_the_known_ones(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", CONFIGS["llama"], {}, general__architecture="mamba")
    with pytest.raises(ModelError, match=r"mamba.*gemma3.*llama.*qwen2"):
        open_checkpoint(path)


def test_missing_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    config, ops = CONFIGS["llama"], resolve_ops("reference")
    tensors = tensors_of("llama")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(open_checkpoint(write_gguf(tmp_path / "a.gguf", config, tensors)), ops)
    tensors["model.layers.1.mlp.up_proj.weight"] = torch.randn(48, 31)
    with pytest.raises(ModelError, match=r"up_proj\.weight: has shape \(48, 31\).*\(48, 32\)"):
        load_model(open_checkpoint(write_gguf(tmp_path / "b.gguf", config, tensors)), ops)
    tensors["model.layers.0.self_attn.q_proj.weight"] = torch.randn(4, 32)
    odd = open_checkpoint(write_gguf(tmp_path / "c.gguf", {**config, "num_attention_heads": 1}, tensors))
    odd.config["num_attention_heads"] = 3
    with pytest.raises(ModelError, match="rotary heads"):
        odd.tensor("model.layers.0.self_attn.q_proj.weight")
    with pytest.raises(ModelError, match="no such tensor"):
        open_checkpoint(tmp_path / "b.gguf").tensor("model.nothing")
