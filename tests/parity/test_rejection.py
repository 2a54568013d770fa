"""Speculative sampling draws from the target's distribution: chi-square tests on a vocabulary of 61, for every rule.

The draft model is another random model, so its distribution is far from the target's; the statistic's threshold is
its 99.99 % quantile, and seeds are fixed, so a test either always passes or always fails.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from drafters import Prophet
from harness import make_engine, request, run

from headrace.api.drafters import full_group
from headrace.contract.request import SamplingParams
from headrace.engine.engine import Engine
from headrace.kernels.resolve import resolve_ops
from headrace.models.context import Model
from headrace.models.registry import load_model
from headrace.models.weights import open_checkpoint
from headrace.speculation.drafter import Draft
from headrace.worker.kv_tensors import allocate_kv
from headrace.worker.model_drafter import ModelDrafter
from headrace.worker.rejection import DRAW, DraftedRows, settle
from headrace.worker.sampler import sample_params

V = 61
KNOBS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.6},
    {"temperature": 1.3, "top_k": 9},
    {"temperature": 1.0, "top_p": 0.7},
    {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
]


def chi_square(counts: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    """(statistic, 99.99 % quantile by Wilson and Hilferty); ids expected fewer than 5 times count as one."""
    small = expected < 5
    groups = [(counts[~small], expected[~small]), ([counts[small].sum()], [expected[small].sum()])]
    seen, wanted = (np.concatenate([np.asarray(g[i], dtype=float) for g in groups]) for i in (0, 1))
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    freedom = len(seen) - 1
    quantile = freedom * (1 - 2 / (9 * freedom) + 3.72 * (2 / (9 * freedom)) ** 0.5) ** 3
    return float(((seen - wanted) ** 2 / wanted).sum()), quantile


def draws(knobs: dict[str, Any], count: int) -> tuple[np.ndarray, float, torch.Tensor]:
    """(how often each id was emitted first, share accepted, target distribution): the rule itself, no engine."""
    from headrace.kernels.reference.sampling import distribution, sample

    generator = torch.Generator().manual_seed(5)
    target, draft = (2.0 * torch.randn(1, V, generator=generator) for _ in range(2))
    counts, accepted = np.zeros(V), 0
    for seed in range(count):
        wish = SamplingParams(seed=seed, **knobs)
        q_params, p_params = sample_params([wish], [7], DRAW), sample_params([wish, wish], [7, 8])
        token = sample(draft, q_params)
        q = distribution(draft, q_params)
        logits = target.repeat(2, 1)
        ids = sample(logits, p_params)
        item = DraftedRows(0, Draft(token.numpy(), np.zeros((1, 3)), q))
        settle(logits, p_params, ids, [item])
        counts[int(ids[0])] += 1
        accepted += int(ids[0]) == int(token[0])
    return counts, accepted / count, distribution(target, sample_params([SamplingParams(seed=0, **knobs)], [7]))[0]


@pytest.fixture(scope="module")
def plain_draws() -> tuple[np.ndarray, float, torch.Tensor]:
    return draws(KNOBS[0], 3000)


def test_rejection_sampling_draws_from_the_target(plain_draws: tuple[np.ndarray, float, torch.Tensor]) -> None:
    agrees(*plain_draws)


# The last of them has every rule in it, and the rules' order.
@pytest.mark.parametrize("knobs", [*(pytest.param(one, marks=pytest.mark.slow) for one in KNOBS[1:-1]), KNOBS[-1]])
def test_rejection_sampling_under_rules_draws_from_the_target(knobs: dict[str, Any]) -> None:
    agrees(*draws(knobs, 3000))


def agrees(counts: np.ndarray, accepted: float, target: torch.Tensor) -> None:
    statistic, quantile = chi_square(counts, target.double().numpy() * 3000)
    assert statistic < quantile
    assert counts[target.numpy() == 0].sum() == 0
    assert 0.02 < accepted < 0.98


def test_the_statistic_tells_the_draft_from_the_target(plain_draws: tuple[np.ndarray, float, torch.Tensor]) -> None:
    """Without the residual the test above must fail: otherwise it shows nothing."""
    counts, _, target = plain_draws
    skewed = np.roll(counts, 1)
    statistic, quantile = chi_square(skewed, target.double().numpy() * 3000)
    assert statistic > quantile


def drafting_engine(model: Model, draft: Model, rejection: bool, **settings: Any) -> Engine:
    engine = make_engine(model, drafter=Prophet([]), max_drafts=3, **settings)
    runner = engine.worker._runner  # type: ignore[attr-defined]
    kv = allocate_kv(draft.kv_layout, len(runner.kv[0].k), 4, poison=True)
    group = full_group(runner.model.kv_layout)
    drafter = ModelDrafter(draft, runner.ops, kv, 4, group=group, rejection=rejection)
    engine.worker._speculator._drafter = drafter  # type: ignore[attr-defined]
    return engine


@pytest.mark.parametrize("rejection", [False, True])
def test_tokens_of_the_engine_are_distributed_as_without_drafts(tiny: Callable[[str], Model], rejection: bool) -> None:
    """The second and third token of many seeds, against the same without drafts: a two-sample chi-square."""
    model, draft, rounds = tiny("llama"), tiny("qwen3"), 12
    knobs = {"temperature": 0.9, "max_tokens": 4, "repetition_penalty": 1.2, "logprobs": None}
    seen = []
    for engine, first_seed in ((make_engine(model), 10_000), (drafting_engine(model, draft, rejection), 0)):
        counts = np.zeros((2, V))
        for number in range(rounds):
            seeds = range(first_seed + 100 * number, first_seed + 100 * number + 100)
            for outcome in run(engine, [request([3, 1, 4], seed=seed, **knobs) for seed in seeds]):
                for place in (1, 2):
                    counts[place - 1, outcome.token_ids[place]] += 1
        seen.append(counts)
        verified, accepted = engine.stats.verified_drafts, engine.stats.accepted_drafts
        engine.close()
    assert 0 < accepted < verified
    for plain, drafted in zip(*seen):
        pooled = (plain + drafted) / 2
        one, quantile = chi_square(plain, pooled)
        other, _ = chi_square(drafted, pooled)
        assert one + other < quantile


def test_greedy_answers_are_those_of_plain_decoding_under_rejection_too(tiny: Callable[[str], Model]) -> None:
    model, draft = tiny("llama"), tiny("qwen3")
    plain, drafted = make_engine(model), drafting_engine(model, draft, rejection=True)
    prompts = [[3, 1, 4], [1, 5, 9, 2], [6]]
    answers = [[o.bits for o in run(e, [request(p, max_tokens=20) for p in prompts])] for e in (plain, drafted)]
    assert answers[0] == answers[1]
    plain.close()
    drafted.close()


@pytest.mark.parametrize("temperature", [1e-46, 1e-300])
def test_a_temperature_that_float32_rounds_to_zero_is_greedy(tiny: Callable[[str], Model], temperature: float) -> None:
    """No distribution is divided by it: where the ops draw greedily, drafts are judged so too."""
    engine = drafting_engine(tiny("llama"), tiny("llama"), rejection=True)
    prompts = [[3, 1, 4], [1, 5, 9, 2]]
    greedy, rounded = (
        [o.bits for o in run(engine, [request(p, max_tokens=20, seed=3, temperature=t) for p in prompts])]
        for t in (0.0, temperature)
    )
    assert rounded == greedy
    engine.close()


@pytest.mark.parametrize("rejection", [False, True])
def test_a_draft_model_is_not_asked_beyond_its_own_context(
    tiny: Callable[[str], Model], tmp_path: Path, rejection: bool
) -> None:
    """The target's own weights with a context of 16: sequences below, at, across and beyond it, in one batch."""
    config = tiny_models.CONFIGS["llama"] | {"max_position_embeddings": 16}
    folder = tiny_models.write_directory(tmp_path, config, tiny_models.random_tensors(config))
    short = load_model(open_checkpoint(folder), resolve_ops("cpu", strict=True), exact=True)
    prompts = [[1 + i % 60 for i in range(length)] for length in (3, 14, 15, 16, 17, 40)]
    plain, drafted = make_engine(tiny("llama")), drafting_engine(tiny("llama"), short, rejection)
    answers = [[o.bits for o in run(e, [request(p, max_tokens=20) for p in prompts])] for e in (plain, drafted)]
    assert answers[0] == answers[1]
    assert drafted.stats.accepted_drafts >= 10
    plain.close()
    drafted.close()
