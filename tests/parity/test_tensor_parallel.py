"""A dense model cut over ranks gives the bits of one rank: prompts, chunks, decoding, float and quantised weights."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tiny_models
import torch
from paged_runner import PagedRunner
from quantised import Quantised
from torch import Tensor

from headrace.contract.errors import ConfigError, GroupBroken
from headrace.kernels.resolve import resolve_ops
from headrace.models.context import Model
from headrace.models.dense.assembly import load_dense
from headrace.models.dense.sharded import ShardedModel
from headrace.models.weights import open_checkpoint
from headrace.parallel.exchange import Exchange, LocalExchange
from headrace.parallel.gloo import GlooExchange
from headrace.parallel.tensor import TensorShare

WAIT_S = 60.0


def write(family: str, folder: Path, **sizes: int) -> Path:
    config = tiny_models.CONFIGS[family] | sizes
    return tiny_models.write_directory(folder / family, config, tiny_models.random_tensors(config))


def loaded(path: Path, share: TensorShare | None, *, blocks: bool = False) -> Model:
    checkpoint, ops = open_checkpoint(path), resolve_ops("cpu", strict=True)
    [architecture] = checkpoint.config["architectures"]
    return load_dense(architecture, Quantised(checkpoint) if blocks else checkpoint, ops, None, not blocks, share)


def states(model: Model) -> list[Tensor]:
    """Of two sequences: a prompt in two chunks beside a whole one, then tokens one by one."""
    rng = random.Random(3)
    ids = [[rng.randrange(60) for _ in range(n)] for n in (19, 8)]
    runner, out = PagedRunner(model, resolve_ops("cpu"), 2, 40), []
    with torch.inference_mode():
        out += runner.step({0: ids[0][:7], 1: ids[1]})
        out += runner.step({0: ids[0][7:]})
        for token in range(4):
            out += runner.step({0: [token], 1: [token + 9]})
    return [one.clone() for one in out]


def over(size: int, make: Callable[[TensorShare], Model], ends: list[Exchange]) -> list[list[Tensor]]:
    models = [make(TensorShare(rank, size)) for rank in range(size)]
    for model, end in zip(models, ends):
        assert isinstance(model, ShardedModel)
        model.join(end)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(states, models))


def local(size: int) -> list[Exchange]:
    group = LocalExchange(size, WAIT_S)
    return [group.member(rank) for rank in range(size)]


def same(found: list[Tensor], expected: list[Tensor]) -> bool:
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


@pytest.mark.parametrize("family", ["llama", "llama-untied-scaled", "qwen2", "qwen2-sliding", "qwen3"])
def test_two_ranks_equal_one(family: str, tmp_path: Path) -> None:
    path = write(family, tmp_path)
    expected = states(loaded(path, None))
    for found in over(2, lambda share: loaded(path, share), local(2)):
        assert same(found, expected)


def test_quantised_weights_and_four_ranks_over_gloo(tmp_path: Path) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 8, "num_key_value_heads": 4}
    path = write("llama", tmp_path, **sizes)
    expected = states(loaded(path, None, blocks=True))
    with ThreadPoolExecutor(4) as pool:
        meeting = f"file:{tmp_path / 'meet'}"
        ends: list[Exchange] = list(pool.map(lambda rank: GlooExchange(rank, 4, meeting, WAIT_S), range(4)))
    for found in over(4, lambda share: loaded(path, share, blocks=True), ends):
        assert same(found, expected)


def test_a_rank_holds_its_part_only(tmp_path: Path) -> None:
    path = write("llama", tmp_path)
    part = loaded(path, TensorShare(1, 2))
    assert part.kv_layout.num_kv_heads == 1  # type: ignore[union-attr]
    layer = part.params.layers[0]  # type: ignore[attr-defined]
    assert (layer.qkv.n, layer.output.n, layer.gate_up.n, layer.down.n) == (32, 16, 48, 16)


@pytest.mark.parametrize(("family", "size", "words"), [("llama", 4, "2 key and value"), ("llama", 3, "32 columns")])
def test_shapes_that_ranks_cannot_share_are_refused(family: str, size: int, words: str, tmp_path: Path) -> None:
    path = write(family, tmp_path)
    with pytest.raises(ConfigError, match=f"^tensor_parallel_size: {size} ranks cannot share {words}"):
        loaded(path, TensorShare(0, size))


def test_a_rank_that_fails_ends_the_step_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("llama", tmp_path)
    models = [loaded(path, TensorShare(rank, 2)) for rank in range(2)]
    for model, end in zip(models, local(2)):
        model.join(end)  # type: ignore[attr-defined]

    def broken(*_: object) -> Tensor:
        raise RuntimeError("out of order")

    monkeypatch.setattr(models[1], "_attention", broken)
    with ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(states, model) for model in models)
        assert isinstance(first.exception(WAIT_S), GroupBroken)
        assert "rank 1 of 2 failed" in str(second.exception(WAIT_S))
