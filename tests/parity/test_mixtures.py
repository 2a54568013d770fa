"""Whatever is combined (discipline, overlap, drafts, a planner that trims them, choices, stop rules, grammars, aborts,
preemption), a request's tokens and logprobs are those of a plain engine that had nothing else to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from grammars import chains
from harness import Outcome, make_engine, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mixtures import DISCIPLINES, DRAFTERS, WISHES, Ask, Setting, play

from headrace.models.context import Model

ASKS = st.builds(
    Ask,
    # Few different ids, so that prompts have prefixes in common and answers repeat what was before.
    prompt=st.lists(st.sampled_from([3, 5, 7, 8]), min_size=1, max_size=18).map(tuple),
    wish=st.integers(0, len(WISHES) - 1),
    max_tokens=st.integers(1, 14),
    choices=st.integers(1, 3),
    arrival=st.integers(0, 8),
    abort=st.none() | st.integers(0, 9),
)
SETTINGS = st.builds(
    Setting,
    discipline=st.sampled_from(DISCIPLINES),
    overlap=st.booleans(),
    drafter=st.sampled_from(DRAFTERS),
    max_drafts=st.integers(1, 5),
    priced=st.booleans(),
    token_budget=st.integers(6, 40),
    max_seqs=st.integers(1, 6),
    pressed=st.booleans(),
)
Plain = Callable[[Ask], list[Outcome]]


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def mixed_model(request: pytest.FixtureRequest, tiny: Callable[[str], Model]) -> Model:
    return tiny(request.param)


@pytest.fixture(scope="module")
def plain(mixed_model: Model) -> Iterator[Plain]:
    """Each choice alone, synchronously, without drafts, cache or pressure; known once computed."""
    engine = make_engine(mixed_model, overlap=False, prefix_caching=False, graphs="none", grammars=chains())
    known: dict[Ask, list[Outcome]] = {}

    def outcomes(ask: Ask) -> list[Outcome]:
        if ask not in known:
            known[ask] = [run(engine, [item])[0] for item in ask.requests()]
        return known[ask]

    yield outcomes
    engine.close()


def agrees(outcome: Outcome, expected: Outcome) -> bool:
    """Equal to the bit, or, of an aborted request, equal as far as it came."""
    if outcome.finish_reason != "abort":
        return outcome.bits == expected.bits
    length = len(outcome.token_ids)
    beginning = expected.token_ids[:length], expected.logprobs[: len(outcome.logprobs)]
    return (outcome.token_ids, outcome.logprobs) == beginning


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(setting=SETTINGS, asks=st.lists(ASKS, min_size=1, max_size=5))
def test_a_mixture_changes_no_bit_and_leaves_no_block(
    mixed_model: Model, plain: Plain, setting: Setting, asks: list[Ask]
) -> None:
    expected = [plain(ask) for ask in asks]
    known = [[*ask.prompt, *o.token_ids, 7, 8, 9] for ask, outcomes in zip(asks, expected) for o in outcomes]
    for ask, outcomes, wanted in zip(asks, play(mixed_model, setting, asks, known), expected):
        for number, (outcome, alone) in enumerate(zip(outcomes, wanted)):
            assert agrees(outcome, alone), (ask, number, outcome, alone)
            assert outcome.finish_reason != "abort" or ask.abort is not None
