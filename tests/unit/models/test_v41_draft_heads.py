"""Draft heads over the pool: what a block is drafted from follows from the tokens that stand, to the bit, however the
prompt was cut and whatever was rejected on the way."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from paged_runner import PagedRunner
from torch import Tensor
from v41_config import dummy_model

from headrace.contract.errors import ConfigError
from headrace.models.context import HasDraftHeads
from headrace.models.deepseek_v41.draft_context import context_records
from headrace.models.deepseek_v41.drafting import draft_block
from headrace.models.deepseek_v41.forward import V41Model
from headrace.models.deepseek_v41.truncation import Truncation
from headrace.worker.head_drafter import evidence

LENGTH, BLOCK = 45, 8


@pytest.fixture(autouse=True)
def _no_gradients() -> object:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def drafting() -> V41Model:
    of = copy.copy(dummy_model())  # the helper's own stays as others need it
    of.keep_draft_records()
    return of


def ids(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(290) for _ in range(count)]


def runner_for(of: V41Model, num_seqs: int = 1) -> PagedRunner:
    return PagedRunner(of, of.arithmetic.ops, num_seqs, LENGTH + 30, block_size=BLOCK)


def opened(of: V41Model, runner: PagedRunner, seqs: list[int], tokens: list[int]) -> tuple[Tensor, Tensor]:
    """Hidden states and base logits of blocks behind the last ``tokens``, which are not computed yet."""
    positions = [runner.lengths[s] for s in seqs]
    lengths = list(runner.lengths)
    groups = runner.context({s: [0] for s in seqs}).groups
    runner.lengths = lengths
    blocks = of.draft_heads().open(runner.layers, groups, tokens, positions)
    return blocks.hidden, blocks.base


def same(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def test_a_block_from_the_pool_is_the_one_drafted_from_features(drafting: V41Model) -> None:
    runner, prompt = runner_for(drafting), ids(LENGTH, 1)
    step = drafting.begin(runner.context({0: prompt}))
    drafting.run(step, drafting.embed(torch.tensor(prompt, dtype=torch.int32)))
    assert step.features is not None
    features = torch.cat([step.features[n] for n in drafting.config.draft.taps], dim=1)
    window = drafting.config.window
    records = context_records(drafting, drafting.params.draft, features[-window:], torch.arange(LENGTH)[-window:])
    expected = draft_block(drafting, records, 7, LENGTH, lambda row: int(row.argmax()))
    heads = drafting.draft_heads()
    blocks = heads.open(runner.layers, runner.context({0: [7]}).groups, [7], [LENGTH])
    before, found, trust = torch.tensor([7], dtype=torch.int32), [], []
    for place in range(heads.block):
        logits, confidence = heads.row(blocks, place, before)
        before = logits.argmax(1).to(torch.int32)
        found.append(logits[0])
        trust.append(confidence[0])
    assert torch.equal(torch.stack(found), expected.logits)
    assert torch.equal(torch.stack(trust), expected.confidence)


@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_chunks_and_rejected_drafts_leave_the_same_block(drafting: V41Model, chunk: int) -> None:
    prompt = ids(LENGTH, 2)
    whole, cut = runner_for(drafting), runner_for(drafting)
    whole.step({0: prompt})
    for at in range(0, LENGTH, chunk):
        wrong = ids(5, 100 + at)
        cut.step({0: [*prompt[at : at + chunk], *wrong]})
        cut.lengths[0] -= len(wrong)
    assert same(opened(drafting, cut, [0], [9]), opened(drafting, whole, [0], [9]))


def test_several_sequences_draft_as_each_alone(drafting: V41Model) -> None:
    prompts = [ids(LENGTH, 3), ids(3, 4), ids(20, 5)]
    together = runner_for(drafting, 3)
    together.step(dict(enumerate(prompts)))
    hidden, base = opened(drafting, together, [0, 1, 2], [5, 6, 7])
    for number, prompt in enumerate(prompts):
        alone = runner_for(drafting)
        alone.step({0: prompt})
        rows = slice(number, number + 1)
        assert same((hidden[rows], base[rows]), opened(drafting, alone, [0], [5 + number]))


def test_logits_are_those_of_the_model_without_draft_records(drafting: V41Model) -> None:
    prompt, plain = ids(LENGTH, 6), dummy_model()
    assert isinstance(plain, HasDraftHeads)
    assert torch.equal(runner_for(drafting).logits({0: prompt})[0], runner_for(plain).logits({0: prompt})[0])


def test_a_truncating_model_has_no_features_of_all_rows() -> None:
    of = copy.copy(dummy_model())
    of.truncation = Truncation("compact", 64)
    with pytest.raises(ConfigError, match="truncation"):
        of.keep_draft_records()


def test_a_block_may_reach_beyond_the_model_s_context(drafting: V41Model) -> None:
    """Behind the last position nothing is emitted, but a block is opened whole: as where there is more room."""
    short, prompt = copy.copy(dummy_model(max_positions=64)), ids(63, 7)
    short.keep_draft_records()
    blocks = []
    for of in (short, drafting):
        runner = runner_for(of)
        runner.step({0: prompt})
        blocks.append(opened(of, runner, [0], [9]))
    assert same(*blocks)


def test_confidence_that_is_no_number_is_no_trust() -> None:
    """The estimator's weights are those of all sequences: one such fact, learnt from, would end every estimate."""
    least, most, none = (evidence(torch.tensor(x)) for x in (-torch.inf, torch.inf, torch.nan))
    assert 0 < none == least < 1 < most < torch.inf
