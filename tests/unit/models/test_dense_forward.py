"""Every dense family against the oracle: whole prompts, chunks, batches, windows."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from dense_oracle import oracle_logits
from paged_runner import PagedRunner
from tiny_models import CONFIGS, random_tensors, write_directory
from torch import Tensor

from headrace.kernels.ops import Ops
from headrace.kernels.resolve import resolve_ops
from headrace.models.context import Model
from headrace.models.registry import load_model
from headrace.models.weights import open_checkpoint

TOLERANCE = 2e-4
PROMPT = torch.randint(0, 61, (40,), generator=torch.Generator().manual_seed(7)).tolist()


@pytest.fixture(scope="module")
def ops() -> Ops:
    return resolve_ops("reference")


@pytest.fixture(params=CONFIGS)
def tiny(request: pytest.FixtureRequest, tmp_path: Path, ops: Ops) -> tuple[Model, dict[str, Any], dict[str, Tensor]]:
    config = CONFIGS[request.param]
    tensors = random_tensors(config)
    directory = write_directory(tmp_path / "model", config, tensors)
    return load_model(open_checkpoint(directory), ops), config, tensors


def assert_close(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours.double(), expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_whole_prompt(tiny, ops):
    model, config, tensors = tiny
    runner = PagedRunner(model, ops, num_seqs=1, capacity=len(PROMPT))
    assert_close(runner.logits({0: PROMPT})[0], oracle_logits(config, tensors, PROMPT))


def test_oracle_can_tell_families_apart(tiny):
    """The tolerance is far below what any of the family's features contributes."""
    _, config, tensors = tiny
    expected = oracle_logits(config, tensors, PROMPT)
    changes: list[dict[str, Any]] = [{"rope_theta": 5e3}]
    if config["architectures"][0].startswith("Gemma3"):
        changes += [{"query_pre_attn_scalar": 16}, {"sliding_window": 7}, {"rope_local_base_freq": 5e3}]
        changes += [{"sliding_window_pattern": 4}]
    for change in changes:
        other = oracle_logits({**config, **change}, tensors, PROMPT)
        assert (other - expected).abs().max() > 20 * TOLERANCE, change


def test_chunks(tiny, ops):
    """Steps of 1, 7, 2, 29 and 1 tokens give the logits of the whole prompt."""
    model, config, tensors = tiny
    runner = PagedRunner(model, ops, num_seqs=1, capacity=len(PROMPT))
    cuts = [0, 1, 8, 10, 39, 40]
    pieces = [runner.logits({0: PROMPT[a:b]})[0] for a, b in pairwise(cuts)]
    assert_close(torch.cat(pieces), oracle_logits(config, tensors, PROMPT))


def test_mixed_batch(tiny, ops):
    """A step that mixes a decode, a chunk and a fresh prompt leaves each sequence as if it were alone."""
    model, config, tensors = tiny
    prompts = {0: PROMPT[:20], 1: PROMPT[5:30], 2: PROMPT[::-1][:13]}
    runner = PagedRunner(model, ops, num_seqs=3, capacity=32, block_size=3)
    first = runner.logits({0: prompts[0][:19], 1: prompts[1][:6]})
    second = runner.logits({2: prompts[2], 0: prompts[0][19:], 1: prompts[1][6:]})
    ours = {0: [first[0], second[1]], 1: [first[1], second[2]], 2: [second[0]]}
    for seq, prompt in prompts.items():
        assert_close(torch.cat(ours[seq]), oracle_logits(config, tensors, prompt))


def test_layout_follows_windows(ops, tmp_path):
    config = CONFIGS["gemma3"]
    model = load_model(open_checkpoint(write_directory(tmp_path, config, random_tensors(config))), ops)
    layout = model.kv_layout
    assert (layout.num_layers, layout.num_kv_heads, layout.head_dim) == (7, 1, 16)
    assert [(g.window, g.layers) for g in layout.groups] == [(0, (2, 5)), (6, (0, 1)), (6, (3, 4)), (6, (6,))]
    assert model.max_positions == 128
    assert model.vocab_size == 61


def test_newer_rope_spelling_means_the_same(ops, tmp_path):
    """``rope_parameters`` (one object, or one per layer type) against the older keys."""
    for name in ("llama-untied-scaled", "gemma3"):
        old = CONFIGS[name]
        new = {k: v for k, v in old.items() if not k.startswith("rope_")}
        full = {"rope_theta": old["rope_theta"], **old.get("rope_scaling", {})}
        new["rope_parameters"] = full
        if name == "gemma3":
            local = {"rope_type": "default", "rope_theta": old["rope_local_base_freq"]}
            new["rope_parameters"] = {"full_attention": full, "sliding_attention": local}
        tensors = random_tensors(old)
        model = load_model(open_checkpoint(write_directory(tmp_path / name, new, tensors)), ops)
        logits = PagedRunner(model, ops, 1, 40).logits({0: PROMPT})[0]
        assert_close(logits, oracle_logits(old, tensors, PROMPT))
