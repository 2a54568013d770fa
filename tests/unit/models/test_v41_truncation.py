"""Prompts whose decoder half is computed near their end only: ``compact`` against ``mask``, both against ``off``."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from paged_runner import PagedRunner
from torch import Tensor
from v41_config import CONFIG, dummy_model, text
from v41_data import median_row

from headrace.contract.errors import ConfigError
from headrace.models.deepseek_v41.config import derive_v41
from headrace.models.deepseek_v41.forward import V41Model
from headrace.models.deepseek_v41.truncation import COMPACT, MASK, OFF, Truncation, check_truncation, exact_keep

LENGTHS = (90, 31, 140, 1)
CHUNKS = (1000, 37, 16, 5)
KEEP = 30  # the window of 16 and the twelve positions that decoding may go back by, and two


@pytest.fixture(autouse=True)
def _no_gradients() -> object:
    with torch.inference_mode():
        yield


@pytest.fixture
def small() -> Iterator[V41Model]:
    of = dummy_model()
    yield of
    of.truncate(Truncation())


def prompts(lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    rng = random.Random(9)
    return [[rng.randrange(300) for _ in range(n)] for n in lengths]


def hidden_states(of: V41Model, mode: str, keep: int, chunk: int, after: int = 3) -> list[Tensor]:
    """Hidden states of all rows of a batch of prompts, fed in chunks, and of ``after`` decoded tokens each."""
    of.truncate(Truncation(mode, keep))
    fed = prompts()
    runner = PagedRunner(of, of.arithmetic.ops, len(fed), max(LENGTHS) + after, block_size=8)
    found: list[list[Tensor]] = [[] for _ in fed]
    for work in steps(fed, chunk, after):
        known = {s: max(LENGTHS[s], runner.lengths[s] + len(ids)) for s, ids in work.items()}
        out = of.forward(runner.context(work, known)).split([len(ids) for ids in work.values()])
        for s, rows in zip(work, out):
            found[s].append(rows)
    return [torch.cat(rows) for rows in found]


def steps(fed: list[list[int]], chunk: int, after: int) -> Iterator[dict[int, list[int]]]:
    for at in range(0, max(map(len, fed)), chunk):
        yield {s: ids[at : at + chunk] for s, ids in enumerate(fed) if ids[at : at + chunk]}
    for token in range(after):
        yield {s: [token + 7] for s in range(len(fed))}


def computed(rows: Tensor) -> Tensor:
    return ~rows.isnan().any(1)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_compact_equals_mask_on_the_rows_it_keeps(small: V41Model, chunk: int) -> None:
    masked, compact = (hidden_states(small, mode, KEEP, chunk) for mode in (MASK, COMPACT))
    for ours, oracle, length in zip(compact, masked, LENGTHS):
        kept = computed(ours)
        assert kept[max(0, length - KEEP) :].all()
        assert not kept.all() or length <= KEEP
        assert computed(oracle).all()
        assert torch.equal(ours[kept], oracle[kept])


def test_chunks_of_a_truncated_prompt_do_not_matter(small: V41Model) -> None:
    """Kept rows are the same wherever the cuts fall: what can be seen depends on the whole prompt's length only."""
    whole, *others = (hidden_states(small, COMPACT, KEEP, chunk) for chunk in CHUNKS)
    for cut in others:
        for a, b, length in zip(whole, cut, LENGTHS):
            tail = max(0, length - KEEP)
            assert torch.equal(a[tail:], b[tail:])


@pytest.mark.parametrize("mode", [MASK, COMPACT])
def test_keeping_everything_changes_nothing(small: V41Model, mode: str) -> None:
    exact = hidden_states(small, OFF, 0, 37)
    assert all(map(torch.equal, hidden_states(small, mode, 1000, 37), exact))


def test_enough_kept_rows_leave_the_last_one_exact(small: V41Model) -> None:
    """W + (n - 1)(W - 1) rows for n decoder layers; with one less, the last row may see a key that it should not."""
    enough = exact_keep(small.config)
    assert enough == 16 + 3 * 15
    exact, kept, less = (hidden_states(small, *how, 37, 0) for how in ((OFF, 0), (COMPACT, enough), (COMPACT, KEEP)))
    assert all(torch.equal(a[-1], b[-1]) for a, b in zip(kept, exact))
    assert not torch.equal(less[2][-1], exact[2][-1])


def test_the_approximation_is_one(small: V41Model) -> None:
    """With few rows kept, logits of the last row move, by less than they vary (their deviation is about 1)."""
    exact, less = (hidden_states(small, *how, 37, 0) for how in ((OFF, 0), (COMPACT, KEEP)))
    rows = [(small.logits(a[-1:]), small.logits(b[-1:])) for a, b in zip(less, exact)]
    assert 0 < median_row(torch.cat([a - b for a, b in rows])) < 1.0


def test_a_dropped_row_has_no_hidden_state(small: V41Model) -> None:
    assert hidden_states(small, COMPACT, KEEP, 1000)[0][10].isnan().all()


def test_worked_examples() -> None:
    rows = Truncation(COMPACT, 200)
    assert (rows.clip(1000, 512, 488), rows.floor(1000)) == (288, 800)
    assert rows.clip(1000, 0, 512) == 511  # the last row stays
    assert rows.clip(150, 0, 150) == 0
    assert Truncation(MASK, 200).clip(1000, 0, 512) == 0
    assert Truncation().floor(1000) == 0
    released = derive_v41(released_layers())
    assert exact_keep(released) == 2541


def released_layers() -> dict[str, Any]:
    return text(
        num_hidden_layers=40,
        compress_ratios=[0, 0] + [2] * 18 + [1] * 20 + [0] * 3,
        kv_source_layer_ids=[2, 8, 14, 20],
        index_source_layer_ids=[2, 8, 14, 20, 24, 28, 32, 36],
        candidate_source_layer_id=20,
        num_nextn_predict_layers=3,
        dspark_target_layer_ids=[37, 38, 39],
        engram_layer_ids=[1, 14],
    )


REFUSED: dict[str, tuple[str, dict[str, Any], Truncation]] = {
    "unknown mode": ("truncation", CONFIG, Truncation("some", 200)),
    "keeps a window only": ("keep", CONFIG, Truncation(MASK, 128)),
    "one below the least": ("keep", CONFIG, Truncation(COMPACT, 139)),
    "engram in the skipped half": ("engram_layer_ids", text(engram_layer_ids=[1, 4]), Truncation(COMPACT, 140)),
    "taps on both sides": ("dspark_target", text(dspark_target_layer_ids=[3, 7]), Truncation(COMPACT, 140)),
    "a late source": ("kv_source", text(kv_source_layer_ids=[1, 4, 6]), Truncation(COMPACT, 140)),
    "no encoder": (
        "compress_ratios",
        text(
            compress_ratios=[1] * 8 + [0, 0],
            kv_source_layer_ids=[0],
            index_source_layer_ids=[0, 3],
            candidate_source_layer_id=0,
            engram_layer_ids=[],
        ),
        Truncation(MASK, 140),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    key, config, truncation = REFUSED[name]
    with pytest.raises(ConfigError, match=key):
        check_truncation(truncation, derive_v41(copy.deepcopy(config)))


def test_the_least_is_accepted() -> None:
    check_truncation(Truncation(COMPACT, 140), derive_v41(CONFIG))
