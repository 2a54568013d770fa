"""Encoders: equal to a forward pass written a second time; each vector its own text's alone, to the bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_encoder
import torch
from safetensors.torch import load_file, save_file

from headrace.api.embedder import DEFAULT_ENCODER, Embedder, EncoderInputs, encoder_folder
from headrace.contract.errors import InvalidRequest, ModelError, PullError
from headrace.kernels.resolve import resolve_ops
from headrace.models.encoders import read_pooling
from headrace.models.registry import load_model
from headrace.models.weights import open_checkpoint

TEXTS = ["a", "cab sea", "b c d e f g h i j", "the sea [SEP] x"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder.write_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_vectors_equal_the_formulas(folder: Path, backend: str) -> None:
    inputs, weights = EncoderInputs(folder), tiny_encoder.weights(tiny_encoder.CONFIG)
    for text, vector in zip(TEXTS, Embedder(str(folder), backend=backend, num_threads=1).embed(TEXTS)):
        expected = tiny_encoder.reference(weights, tiny_encoder.CONFIG, inputs.ids(text))
        assert torch.allclose(torch.tensor(vector).double(), expected, atol=1e-5, rtol=0)


def test_neighbours_and_threads_change_no_bit(folder: Path) -> None:
    one, two = (Embedder(str(folder), num_threads=n) for n in (1, 2))
    together = one.embed(TEXTS)
    assert [one.embed([text])[0] for text in TEXTS] == together
    assert two.embed(TEXTS[::-1])[::-1] == together


def test_marks_come_from_the_template_only(folder: Path) -> None:
    ids = EncoderInputs(folder).ids("a [SEP] [CLS]")
    assert (ids.count(2), ids.count(3)) == (1, 1)
    assert (ids[0], ids[-1]) == (2, 3)
    assert len(EncoderInputs(folder).ids("a " * 20)) == 22  # neither cut nor padded as the file would have it


def test_a_text_far_too_long_is_refused_untokenized(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = EncoderInputs(folder)
    most = 256 * inputs.max_positions
    assert len(inputs.ids(" " * (most - 1) + "a")) == 3
    monkeypatch.setattr(inputs, "_tokenizer", None)
    with pytest.raises(InvalidRequest, match=f"has {most + 1} characters"):
        inputs.ids("a " * (most // 2) + "a")


def test_what_does_not_fit_is_refused_by_name(folder: Path) -> None:
    embedder = Embedder(str(folder), num_threads=1)
    for bad, words in (("", "empty"), ("a " * 39, "41 tokens"), ([], "input\\[1\\]"), ([60], "input\\[1\\]")):
        with pytest.raises(InvalidRequest, match=words):
            embedder.embed(["a", bad])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_attention_heads": 5}, "num_attention_heads"),
        ({"hidden_act": "swish"}, "hidden_act"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"architectures": ["RobertaModel"]}, "architectures"),
        ({"vocab_size": 61}, "word_embeddings"),
        ({"num_hidden_layers": 4}, "missing"),
    ],
)
def test_configurations_that_cannot_be(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    made = tiny_encoder.write_encoder(tmp_path)
    (made / "config.json").write_text(json.dumps(tiny_encoder.CONFIG | change))
    with pytest.raises(ModelError, match=words):
        Embedder(str(made), num_threads=1)


def test_prefixed_names_and_no_normalisation(folder: Path, tmp_path: Path) -> None:
    made = tiny_encoder.write_encoder(tmp_path, normalise=False)
    tensors = {f"bert.{name}": value for name, value in load_file(made / "model.safetensors").items()}
    save_file(tensors, made / "model.safetensors")
    [plain] = Embedder(str(made), num_threads=1).embed(["cab"])
    [unit] = Embedder(str(folder), num_threads=1).embed(["cab"])
    length = torch.tensor(plain).norm()
    assert abs(length - 1) > 0.01
    assert torch.allclose(torch.tensor(plain) / length, torch.tensor(unit), atol=1e-6)


def test_another_pooling_is_refused(tmp_path: Path) -> None:
    made = tiny_encoder.write_encoder(tmp_path)
    (made / "1_Pooling").mkdir()
    (made / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true, "word_embedding_dimension": 48}')
    with pytest.raises(ModelError, match="pooling_mode_cls_token"):
        Embedder(str(made), num_threads=1)


def test_a_pulled_folder_that_names_no_pooling_is_refused(tmp_path: Path) -> None:
    made = tiny_encoder.write_encoder(tmp_path)
    (made / "modules.json").unlink()
    assert read_pooling(made).normalise
    (made / ".complete").write_text("hf:org/name")
    with pytest.raises(ModelError, match="pull it again"):
        read_pooling(made)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ({"type": "sentence_transformers.models.Dense"}, "Dense"),
        ({"type": "sentence_transformers.models.Pooling", "path": "2_Pooling"}, "2_Pooling"),
        ({"type": 3}, "entry 3"),
        ("Normalize", "entry 3"),
    ],
)
def test_a_module_that_would_be_left_out_is_refused(tmp_path: Path, module: Any, words: str) -> None:
    made = tiny_encoder.write_encoder(tmp_path)
    listed = json.loads((made / "modules.json").read_text())
    (made / "modules.json").write_text(json.dumps([*listed, module]))
    with pytest.raises(ModelError, match=words):
        read_pooling(made)


def test_an_encoder_does_not_generate(folder: Path) -> None:
    with pytest.raises(ModelError, match="for embeddings"):
        load_model(open_checkpoint(folder), resolve_ops("reference"))


@pytest.mark.model
def test_the_default_encoder_equals_the_formulas_on_its_own_weights() -> None:
    try:
        folder = encoder_folder(DEFAULT_ENCODER)
    except PullError as error:
        pytest.skip(str(error))
    config, inputs = json.loads((folder / "config.json").read_text()), EncoderInputs(folder)
    weights, texts = load_file(folder / "model.safetensors"), ["hello world", "The capital of France is Paris. " * 20]
    for text, vector in zip(texts, Embedder().embed(texts)):
        expected = tiny_encoder.reference(weights, config, inputs.ids(text))
        assert torch.allclose(torch.tensor(vector).double(), expected, atol=1e-5, rtol=0)
