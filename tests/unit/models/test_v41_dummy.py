"""Synthetic V4.1 weights: in the released storage, reproducible, and sane through all layers. Needs no data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from paged_runner import PagedRunner
from v41_config import dummy_model, narrow

from headrace import LLM, SamplingParams
from headrace.models.deepseek_v41.assembly import check
from headrace.models.deepseek_v41.dummy import DummyTensors
from headrace.models.deepseek_v41.reading import TensorReader
from headrace.models.deepseek_v41.records import kv_layout
from headrace.models.deepseek_v41.tensor_table import FP4, FP8
from headrace.models.weights.dummy import DummyCheckpoint


def tensors(seed: int = 5) -> DummyTensors:
    checkpoint = DummyCheckpoint("dummy", narrow(), seed)
    return DummyTensors(checkpoint, check(checkpoint)[1])


def test_tensors_depend_on_seed_and_name() -> None:
    name = "layers.2.attn.wkv.weight"
    same, other = tensors().raw(name), tensors(6).raw(name)
    assert torch.equal(same.view(torch.uint8), tensors().raw(name).view(torch.uint8))
    assert not torch.equal(same.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize("name", ["layers.1.attn.wq_b", "layers.1.ffn.experts.2.w1", "layers.0.attn.wo_b"])
def test_coded_matrices_keep_the_variance_of_their_input(name: str) -> None:
    made = tensors()
    reader = TensorReader(made, check(DummyCheckpoint("dummy", narrow(), 5))[1])
    matrix = reader.matrix(name).float()
    assert made.stored_as(f"{name}.weight")[0] in (FP4, FP8)
    assert 0.5 < matrix.std() * matrix.shape[1] ** 0.5 < 2.5
    assert len(set(reader.coded(name)[1].flatten().tolist())) > 1  # scales differ


@torch.inference_mode()
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_logits_are_of_order_one(backend: str) -> None:
    of = dummy_model(backend=backend)
    [logits] = PagedRunner(of, of.arithmetic.ops, 1, 90).logits({0: list(range(90))})
    assert 0.5 < logits.std() < 2.0
    assert len(logits.argmax(1).unique()) > 20


@torch.inference_mode()
def test_both_backends_agree() -> None:
    """Logits by the median row: one of either rounds a value to its other side now and then."""
    both = []
    for backend in ("cpu", "reference"):
        of = dummy_model(backend=backend)
        both += PagedRunner(of, of.arithmetic.ops, 1, 60).logits({0: list(range(60))})
    assert (both[0] - both[1]).abs().amax(1).median() <= 1e-2


@torch.inference_mode()
def test_compressed_kv_in_eight_bits() -> None:
    """Wider rows and another answer; chunks change no bit of it either."""
    wide, ids = dummy_model(narrow_kv=False), list(range(70))
    assert kv_layout(wide.config).token_bytes[0] > kv_layout(dummy_model().config).token_bytes[0]
    whole = PagedRunner(wide, wide.arithmetic.ops, 1, 70).logits({0: ids})[0]
    runner = PagedRunner(wide, wide.arithmetic.ops, 1, 70)
    parts = [runner.logits({0: ids[at : at + 9]})[0] for at in range(0, 70, 9)]
    assert torch.equal(torch.cat(parts), whole)
    narrow_of = dummy_model()
    [narrow_logits] = PagedRunner(narrow_of, narrow_of.arithmetic.ops, 1, 70).logits({0: ids})
    assert 0 < (whole - narrow_logits).abs().amax(1).median() < 2.0


def test_a_dummy_model_runs_through_the_engine(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(narrow()))
    with LLM(f"dummy:{tmp_path / 'config.json'}", dtype="float32", kv_memory=64 << 20) as llm:
        params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
        [output] = llm.generate({"prompt_token_ids": [1, 2, 3]}, params)
    assert len(output.outputs[0].token_ids) == 4
