"""The training form computes what serving computes: random weights, written as a checkpoint, loaded as a server loads
them. Values within a few float32 roundings of a step may fall to either side, so rows are compared by their median and
by the share of entries that agree."""

from __future__ import annotations

from pathlib import Path

import tokenizers
import torch
from paged_runner import PagedRunner
from tokenizers import models as bpe
from torch import Tensor
from v41_config import narrow

from headrace.kernels.resolve import resolve_ops
from headrace.lab.v41_training.backbone import Backbone, Seen
from headrace.lab.v41_training.drafts import Drafts, draft_form
from headrace.lab.v41_training.form import Form
from headrace.lab.v41_training.loop import Training
from headrace.lab.v41_training.recipe import Recipe
from headrace.lab.v41_training.saving import save_model
from headrace.lab.v41_training.weights import TrainedWeights, fp8_tile_codes, fresh_weights
from headrace.models.deepseek_v41.assembly import load_v41
from headrace.models.deepseek_v41.config import derive_v41
from headrace.models.deepseek_v41.draft_context import context_records
from headrace.models.deepseek_v41.drafting import draft_block
from headrace.models.deepseek_v41.engram_hash import table_primes
from headrace.models.deepseek_v41.forward import V41Model
from headrace.models.deepseek_v41.quantise import fp8_tiles
from headrace.models.deepseek_v41.tensor_table import Table, tensor_table
from headrace.models.weights.hf_directory import HFDirectory

LENGTH, CLOSE, SHARE = 56, 1e-4, 0.98
SHARE_BEHIND_STEPS = 0.8  # of the whole model: a value that falls to its other side moves all rows that see it
VOCAB = 300


def table() -> Table:
    config = derive_v41(narrow())
    assert config.engram is not None
    return tensor_table(config, tuple(sum(primes) for primes in table_primes(config.engram)))


def started(*, narrow_products: bool = False) -> tuple[TrainedWeights, Backbone, Drafts]:
    """Weights away from their starting values: norms, biases and sinks of one and zero hide faults."""
    torch.set_num_threads(1)
    weights = fresh_weights(derive_v41(narrow()), table(), seed=3)
    generator = torch.Generator().manual_seed(4)
    for leaf in weights.leaves.values():
        if leaf.dim() == 1:
            leaf += 0.2 * torch.randn(leaf.shape, generator=generator)
    form = Form(derive_v41(narrow()), weights, narrow=narrow_products)
    backbone, drafts = draft_form(form, torch.arange(VOCAB, dtype=torch.int32), LENGTH)
    return weights, backbone, drafts


def served(weights: TrainedWeights, folder: Path) -> V41Model:
    tokenizers.Tokenizer(bpe.BPE()).save(str(folder / "tokenizer.json"))
    save_model(folder, narrow(), weights)
    ops = resolve_ops("cpu", strict=True)
    return load_v41(HFDirectory(folder), ops, None, "float32", lambda: torch.arange(VOCAB, dtype=torch.int32))


def ids(sequences: int) -> Tensor:
    return torch.randint(0, 290, (sequences, LENGTH), generator=torch.Generator().manual_seed(9))


def close_share(ours: Tensor, theirs: Tensor) -> float:
    return ((ours - theirs).abs() <= CLOSE * theirs.abs().clamp(min=1.0)).double().mean().item()


@torch.no_grad()
def test_logits_and_features_equal_those_of_serving(tmp_path: Path) -> None:
    weights, backbone, _ = started()
    of, tokens = served(weights, tmp_path), ids(2)
    seen: Seen = backbone(tokens)
    ours = backbone.logits(seen.hidden).unflatten(0, tokens.shape)
    for row, logits, features in zip(tokens, ours, seen.features.unflatten(0, tokens.shape)):
        runner = PagedRunner(of, of.arithmetic.ops, 1, LENGTH, block_size=8)
        step = of.begin(runner.context({0: row.tolist()}))
        step.features = {}
        hidden = of.run(step, of.embed(row.to(torch.int32)))
        assert (of.logits(hidden) - logits).abs().amax(1).median() <= CLOSE
        assert close_share(logits, of.logits(hidden)) >= SHARE_BEHIND_STEPS
        kept = torch.cat([step.features[n] for n in of.config.draft.taps], dim=1)
        assert close_share(features, kept) >= SHARE_BEHIND_STEPS


@torch.no_grad()
def test_drafts_equal_those_of_serving(tmp_path: Path) -> None:
    weights, backbone, drafts = started()
    of, tokens, anchors = served(weights, tmp_path), ids(1), torch.tensor([[3, 17, 40]])
    seen = backbone(tokens)
    hidden = drafts.hidden(tokens, seen.features, anchors).unflatten(0, (3, -1))
    for at, rows in zip(anchors[0].tolist(), hidden):
        before = range(max(0, at - of.config.window), at)
        records = context_records(of, of.params.draft, seen.features[list(before)], torch.tensor(list(before)))
        truth = iter(tokens[0, at + 1 :].tolist())
        block = draft_block(of, records, int(tokens[0, at]), at, lambda _, truth=truth: next(truth))  # type: ignore[misc]
        markov = weights.rows(f"{drafts.last}markov_head.embed.weight", tokens[0, at : at + drafts.block])
        assert close_share(drafts.logits(rows, markov), block.logits) >= SHARE
        assert close_share(drafts.confidence(rows, markov), block.confidence) >= SHARE


def test_weights_come_back_from_their_stored_form() -> None:
    weights = started()[0]
    stored = weights.stored()
    assert set(stored) == set(table())
    name = "layers.1.attn.wq_b.weight"
    codes, scales = (stored[n].view(torch.uint8) for n in (name, name.replace("weight", "scale")))
    assert torch.equal(fp8_tiles(codes, scales), weights(name).detach())
    assert (weights(name) - weights.leaves[name]).abs().max() <= weights.leaves[name].abs().max() / 16


def test_tiles_that_are_not_whole_keep_their_values() -> None:
    x = torch.randn(40, 50, generator=torch.Generator().manual_seed(1))
    assert (fp8_tiles(*fp8_tile_codes(x)) - x).abs().max() <= x.abs().max() / 16


def test_a_resumed_training_goes_on_as_if_never_interrupted(tmp_path: Path) -> None:
    recipe = Recipe(steps=4, sequences=2, length=LENGTH, anchors=2, warmup=1)
    texts = (torch.randint(3, 290, (400,), generator=torch.Generator().manual_seed(2)),)

    def training() -> Training:
        weights, _, drafts = started(narrow_products=True)
        return Training(recipe, drafts.form.config, weights, drafts)

    whole = list(training().run(texts))
    first, second = training(), training()
    before = list(first.run(texts, most=2))
    first.save(tmp_path / "state")
    second.load(tmp_path / "state")
    assert [*before, *second.run(texts)] == whole
    assert whole[-1].text < whole[0].text


LEARNING = (
    "layers.0.hc_attn_fn",
    "layers.2.attn.wkv.weight",
    "layers.1.attn.indexer.wq_b.weight",
    "layers.0.engram.embed.weight",
    "layers.4.attn.compressor.wkv.weight",
    "layers.3.ffn.experts.0.w2.weight",
    "layers.1.attn.attn_sink",
    "mtp.0.main_proj.weight",
    "mtp.1.markov_head.head.weight",
    "mtp.1.confidence_head.proj.weight",
)


def test_every_kind_of_weight_learns() -> None:
    weights, _, drafts = started()
    recipe = Recipe(steps=1, sequences=2, length=LENGTH, anchors=2, warmup=1)
    training = Training(recipe, drafts.form.config, weights, drafts)
    before = {name: weights.leaves[name].detach().clone() for name in LEARNING}
    list(training.run((torch.randint(3, 290, (400,), generator=torch.Generator().manual_seed(2)),)))
    for name, old in before.items():
        assert weights.leaves[name].isfinite().all(), name
        assert not torch.equal(old, weights.leaves[name].detach()), name
