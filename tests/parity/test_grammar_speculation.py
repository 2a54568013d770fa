"""Drafts under a grammar: ids and the bits of logprobs are those of plain decoding under the same grammar, and where
drafts are judged by rejection sampling, tokens have the distribution that the grammar leaves."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from extras import needs_compiler
from grammars import ANYTHING, END, Chain, chains
from harness import Outcome, make_engine, request, run
from test_parity import bits, prompts, wishes
from test_rejection import chi_square, drafting_engine
from test_speculation import PRESSED, prophet, speculated, speculating

from headrace.contract.plan import SequenceStart
from headrace.contract.request import Request, SamplingParams, StructuredOutputs
from headrace.grammar.backend import Vocabulary
from headrace.grammar.compiler import GrammarPool
from headrace.kernels.reference.sampling import distribution, sample
from headrace.models.context import Model
from headrace.speculation.drafter import Draft, matched
from headrace.worker.grammars import Grammars
from headrace.worker.rejection import DRAW, DraftedRows, one_row, settle
from headrace.worker.sampler import sample_params

WIDTHS = {"narrow": 2, "wide": 30}


def items(length: int = 18) -> list[Request]:
    """Two of three under the grammar; ``min_tokens`` contradicts a structured output, so nobody asks for it."""
    asked = [wishes(i) | {"max_tokens": length} for i in range(8)]
    for i, wish in enumerate(asked):
        wish.pop("min_tokens", None)
        if i % 3:
            wish["structured_outputs"] = ANYTHING
    return [request(p, eos_ids=(END,), **w) for p, w in zip(prompts(8, high=30), asked)]


def plain(model: Model, grammars: GrammarPool, asked: list[Request], **limits: Any) -> list[Outcome]:
    engine = make_engine(model, overlap=False, graphs="none", prefix_caching=False, grammars=grammars, **limits)
    outcomes = run(engine, asked)
    engine.close()
    return outcomes


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("discipline", ["unified", "phases"])
def test_drafts_under_a_grammar_change_nothing(
    tiny: Callable[[str], Model], discipline: str, width: str, overlap: bool
) -> None:
    """The prophet is wrong now and then: its drafts are right, allowed but wrong, or forbidden."""
    model = tiny("llama")
    expected = plain(model, chains(width=WIDTHS[width]), items())
    assert {o.finish_reason for o in expected} == {"stop", "length"}
    for wrong, limits in ((0.0, {}), (0.3, {"token_budget": 16}), (0.3, PRESSED | {"num_blocks": 18})):
        engine = speculating(
            model,
            discipline,
            overlap=overlap,
            drafter=prophet(items(), expected, wrong),
            grammars=chains(width=WIDTHS[width]),
            **limits,
        )
        assert bits(run(engine, items())) == bits(expected)
        verified, accepted = speculated(engine)
        assert 0 < accepted < verified or wrong == 0.0
        engine.close()


def test_structured_requests_are_really_sped_up(tiny: Callable[[str], Model]) -> None:
    """With drafts that are always right, an answer under a grammar takes a few steps."""
    model = tiny("llama")
    asked = [request([1, 2, 3], eos_ids=(END,), structured_outputs=ANYTHING, max_tokens=5) for _ in range(2)]
    expected = plain(model, chains(), asked[:1])
    engine = make_engine(model, grammars=chains(), drafter=prophet(asked[:1], expected, 0.0), overlap=False)
    before = engine.stats.steps
    [outcome] = run(engine, asked[1:])
    assert outcome.bits == expected[0].bits
    assert speculated(engine)[1] > 0
    assert engine.stats.steps - before < 5
    engine.close()


def test_a_request_that_leaves_its_grammar_ends_with_an_error_alone(tiny: Callable[[str], Model]) -> None:
    """No id satisfies both the grammar and the ban: the error is that of plain decoding, with drafts or without."""
    model = tiny("llama")

    def asked() -> list[Request]:
        stuck = request([4, 5], structured_outputs=ANYTHING, banned_token_ids=list(range(61)), eos_ids=(END,))
        return [stuck, request([1, 2, 3], eos_ids=(END,), structured_outputs=ANYTHING)]

    expected = plain(model, chains(), asked())
    assert expected[0].finish_reason == "error"
    engine = make_engine(model, grammars=chains(), drafter=prophet(asked()[1:], expected[1:]))
    assert bits(run(engine, asked())) == bits(expected)
    engine.close()


@pytest.mark.parametrize("drafts", [False, True])
def test_a_request_that_leaves_its_grammar_costs_its_neighbours_nothing(
    tiny: Callable[[str], Model], drafts: bool
) -> None:
    """The next step is under way when it is known: it holds the sequence, and an input that nobody drew."""
    model = tiny("llama")

    def asked() -> list[Request]:
        stuck = request([4, 5], structured_outputs=ANYTHING, banned_token_ids=list(range(61)), eos_ids=(END,))
        return [request([1, 2, 3], max_tokens=9), stuck, request([7, 8, 9], max_tokens=9)]

    expected = plain(model, chains(), asked())
    assert [outcome.finish_reason for outcome in expected] == ["length", "error", "length"]
    drafter = prophet([asked()[0]], [expected[0]], 0.5) if drafts else None
    engine = make_engine(model, grammars=chains(), overlap=True, drafter=drafter)
    assert bits(run(engine, asked())) == bits(expected)
    assert engine.stats.failed_steps == 0
    engine.close()


def test_rejection_sampling_emits_only_what_the_grammar_allows(tiny: Callable[[str], Model]) -> None:
    """Drafts of another model that knows nothing of the grammar; every id that comes out is walked along again."""
    engine = drafting_engine(tiny("llama"), tiny("qwen3"), True, grammars=chains())
    knobs = {"temperature": 0.9, "max_tokens": 9, "logprobs": None, "structured_outputs": ANYTHING, "eos_ids": (END,)}
    for outcome in run(engine, [request([3, 1, 4], seed=seed, **knobs) for seed in range(60)]):
        chain = Chain(61, 9)
        assert all(chain.accept(token) for token in outcome.token_ids)
        assert outcome.finish_reason == ("stop" if chain.ended else "length")
    verified, accepted = speculated(engine)
    assert 0 < accepted < verified
    engine.close()


@pytest.mark.parametrize("kept", [True, False])
def test_why_a_drawn_id_that_is_forbidden_is_kept_to_be_rejected(kept: bool) -> None:
    """Drafts drawn without the grammar that bans half of the ids. Judged all, tokens are distributed as the target;
    with forbidden drafts left out, so that the target draws for itself there, they are not."""
    generator, count = torch.Generator().manual_seed(5), 2400
    target, draft = (2.0 * torch.randn(1, 61, generator=generator) for _ in range(2))
    target[:, ::2] = float("-inf")
    wishes, places = [SamplingParams(seed=seed) for seed in range(count)], [7] * count
    logits, params = target.repeat(count, 1), sample_params(wishes, places)
    ids, drafts = sample(logits, params), sample(draft.repeat(count, 1), sample_params(wishes, places, DRAW)).numpy()
    q = distribution(draft, one_row(params, 0))
    judged = [
        DraftedRows(row, Draft(drafts[row : row + 1], np.zeros((1, 3)), q))
        for row in range(count)
        if kept or drafts[row] % 2
    ]
    settle(logits, params, ids, judged)
    counts = np.bincount(ids.numpy(), minlength=61)
    expected = distribution(target, one_row(params, 0))[0].double().numpy() * count
    statistic, quantile = chi_square(counts, expected)
    assert (statistic < quantile) is kept


def test_drafts_are_cut_where_the_grammar_forbids() -> None:
    """Found by a match: before the forbidden id. Drawn from a distribution: behind it."""
    grammar, grammars = chains().request(ANYTHING).future.result(60), Grammars(61)
    start = SequenceStart(4, 2, SamplingParams(), (END,), grammar)
    grammars.take([], [start])
    chain, allowed = Chain(61, 9), [36, 59]
    assert all(chain.accept(token) for token in allowed)
    tokens, ids = np.array([1, 1], dtype=np.int32), np.array([*allowed, 59, 3], dtype=np.int32)
    found = matched(ids.tolist(), 3)
    assert not chain.accept(59)
    assert grammars.fitting(start, tokens, found).ids.tolist() == allowed
    drawn = Draft(ids, found.facts, torch.full((4, 61), 1 / 61))
    assert grammars.fitting(start, tokens, drawn).ids.tolist() == [*allowed, 59]
    free = SequenceStart(5, 2, SamplingParams(), ())
    assert grammars.fitting(free, tokens, found) is found


@needs_compiler
def test_with_the_real_compiler(tiny: Callable[[str], Model]) -> None:
    """A vocabulary of 61 letters and signs, END among them; JSON is walked along, rolled back, and ended."""
    letters = [bytes([c]) for c in b'{}":, 0123456789-[]abcdefghijklmnopqrstuvwxyz.ABCDEFGHIJKLMNO']
    letters[END] = b""
    letters[-1] = b'"'
    letters[-2] = b"}"
    asked_for = StructuredOutputs(regex=r"\{[a-z]{1,3}(, [a-z0-9]{1,4}){0,6}\}")

    def pool() -> GrammarPool:
        return GrammarPool(lambda: Vocabulary(letters, (END,)))

    def asked() -> list[Request]:
        rng = random.Random(3)
        texts = [[rng.randrange(61) for _ in range(5)] for _ in range(4)]
        wish = {"temperature": 1.0, "structured_outputs": asked_for, "max_tokens": 40}
        return [request(text, eos_ids=(END,), seed=i, **wish) for i, text in enumerate(texts)]

    model = tiny("llama")
    expected = plain(model, pool(), asked(), num_blocks=400)
    assert {o.finish_reason for o in expected} == {"stop"}
    engine = make_engine(model, grammars=pool(), drafter=prophet(asked(), expected, 0.2))
    assert bits(run(engine, asked())) == bits(expected)
    assert speculated(engine)[1] > 0
    engine.close()
