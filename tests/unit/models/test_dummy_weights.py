"""Synthetic checkpoints: reproducible, independent of order, and sane at any depth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from paged_runner import PagedRunner
from tiny_models import CONFIGS

from headrace.contract.errors import ModelError
from headrace.kernels.resolve import resolve_ops
from headrace.models.registry import load_model
from headrace.models.weights import open_checkpoint

SHAPES = {"a.weight": (3, 4), "b.weight": (3, 4), "c_norm.weight": (4,), "d.bias": (4,)}


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS["llama"]))
    return path


def test_a_tensor_depends_on_seed_and_name_only(config_file: Path) -> None:
    first, second = (open_checkpoint(config_file, dummy_seed=3) for _ in range(2))
    first.expect(SHAPES)
    second.expect({"b.weight": (3, 4)})
    assert torch.equal(first.tensor("b.weight"), second.tensor("b.weight"))
    assert torch.equal(first.tensor("b.weight"), first.tensor("b.weight"))
    assert not torch.equal(first.tensor("a.weight"), first.tensor("b.weight"))
    other = open_checkpoint(config_file, dummy_seed=4)
    other.expect(SHAPES)
    assert not torch.equal(first.tensor("b.weight"), other.tensor("b.weight"))
    assert first.names() == tuple(SHAPES)


def test_unknown_tensor(config_file: Path) -> None:
    with pytest.raises(ModelError, match="expect"):
        open_checkpoint(config_file, dummy_seed=0).tensor("a.weight")


@pytest.mark.parametrize("name", CONFIGS)
def test_activations_stay_sane(name: str, tmp_path: Path) -> None:
    config = {**CONFIGS[name], "num_hidden_layers": 24, "hidden_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ops = resolve_ops("reference")
    model = load_model(open_checkpoint(tmp_path, dummy_seed=1), ops)
    runner = PagedRunner(model, ops, 1, 40)
    hidden = runner.step({0: list(range(40))})[0]
    assert 0.3 < hidden.square().mean().sqrt() < 30
    assert 0.3 < model.logits(hidden).std() < 10


def test_progress_counts_every_tensor(config_file: Path) -> None:
    steps: list[tuple[int, int]] = []
    checkpoint = open_checkpoint(config_file, dummy_seed=1)
    load_model(checkpoint, resolve_ops("reference"), progress=lambda *step: steps.append(step))
    done, total = steps[-1]
    assert done == total == len(checkpoint.names())
    assert steps == sorted(steps)
