"""Which drawn drafts are verified must leave what is emitted the target's distribution: enumerated, nothing is drawn.

Ids are few, so every draft that two sequences can draw is gone through with its probability. The true speculator says
how much of each is verified, rejection sampling follows its formula, and what is emitted is compared with the target.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from headrace._core import StepCost
from headrace.speculation.drafter import Draft
from headrace.speculation.ngram import NgramDrafter
from headrace.worker.speculator import Speculator
from headrace.worker.verify import choose_by_place, choose_drafts

IDS, DRAFTS = 2, 3
DRAWN = list(product(range(IDS), repeat=DRAFTS))
Tables = dict[tuple[int, ...], np.ndarray]  # by the ids before
Chances = dict[tuple[int, ...], float]
Verified = Callable[[tuple[int, ...], tuple[int, ...]], int]  # of the first sequence's drafts, given both sequences'


def tables(random: np.random.Generator) -> Tables:
    """A distribution for every prefix: one id more than there are drafts can be emitted."""
    prefixes = [prefix for n in range(DRAFTS + 1) for prefix in product(range(IDS), repeat=n)]
    return {prefix: random.dirichlet(np.full(IDS, 0.6)) for prefix in prefixes}


def chances(random: np.random.Generator) -> Chances:
    return {prefix: float(random.random()) for n in range(DRAFTS) for prefix in product(range(IDS), repeat=n)}


def stairs(random: np.random.Generator) -> StepCost:
    """Time by number of rows, rising as it likes: the first draft may not be worth it where the third one is."""
    sizes = list(range(1, 3 + 2 * DRAFTS))
    return StepCost(sizes=sizes, times_ms=(1 + np.cumsum(random.choice([0.0, 0.1, 0.6], len(sizes)))).tolist())


def confidences(known: Chances, ids: tuple[int, ...]) -> list[float]:
    return [known[ids[:j]] for j in range(len(ids))]


def chance_of(table: Tables, ids: tuple[int, ...]) -> float:
    return float(np.prod([table[ids[:j]][token] for j, token in enumerate(ids)]))


def emitted(target: Tables, draft: Tables, ids: tuple[int, ...], count: int) -> dict[tuple[int, ...], float]:
    """What a step emits of which the first ``count`` ids are verified, by rejection sampling's formula."""
    out: dict[tuple[int, ...], float] = {}
    reached = 1.0
    for j in range(count):
        p, q, token = target[ids[:j]], draft[ids[:j]], ids[j]
        accepted = min(1.0, float(p[token] / q[token]))
        left = np.maximum(p - q, 0.0)
        for other in range(IDS):
            if accepted < 1.0:
                share = float(left[other] / left.sum())
                out[(*ids[:j], other)] = out.get((*ids[:j], other), 0.0) + reached * (1 - accepted) * share
        reached *= accepted
    for other in range(IDS):
        last = (*ids[:count], other)
        out[last] = out.get(last, 0.0) + reached * float(target[ids[:count]][other])
    return out


def skew(target: Tables, draft: Tables, neighbour: Tables, verified: Verified) -> float:
    """Largest difference between the chance of ids, with what plain decoding adds behind them, and the target's."""
    found = dict.fromkeys(product(range(IDS), repeat=DRAFTS + 1), 0.0)
    for ids, other in product(DRAWN, DRAWN):
        weight = chance_of(draft, ids) * chance_of(neighbour, other)
        for run, share in emitted(target, draft, ids, verified(ids, other)).items():
            for whole in found:
                if whole[: len(run)] == run:
                    rest = np.prod([target[whole[:j]][whole[j]] for j in range(len(run), len(whole))])
                    found[whole] += weight * share * float(rest)
    return max(abs(chance - chance_of(target, whole)) for whole, chance in found.items())


def drafted(known: Chances, ids: tuple[int, ...], drawn: bool = True) -> Draft:
    facts = np.zeros((len(ids), 3))
    facts[:, 0] = confidences(known, ids)
    return Draft(np.array(ids, np.int32), facts, np.zeros((len(ids), IDS)) if drawn else None)


def speculator_at(cost: StepCost) -> Speculator:
    speculator = Speculator(NgramDrafter(1, 3), DRAFTS, 4, IDS)
    speculator._estimator = SimpleNamespace(rates=lambda _, facts: facts[:, 0].tolist())  # type: ignore[assignment]
    speculator.cost = cost
    return speculator


def by_place(
    speculator: Speculator,
    own: Chances,
    others: Chances,
    other_drawn: bool,
    ids: tuple[int, ...],
    other: tuple[int, ...],
) -> int:
    drafts = [drafted(own, ids), drafted(others, other, other_drawn)]
    return len(speculator._worth([0, 1], [DRAFTS, DRAFTS], drafts)[0])


def at_once(cost: StepCost, own: Chances, others: Chances, ids: tuple[int, ...], other: tuple[int, ...]) -> int:
    """The choice that looks at all of a draft."""
    rates = [confidences(own, ids), confidences(others, other)]
    return int(choose_drafts([DRAFTS, DRAFTS], rates, cost)[2][0])


@pytest.mark.parametrize("other_drawn", [True, False])
def test_what_is_verified_leaves_the_target_s_distribution(other_drawn: bool) -> None:
    skews, lengths = [], set()
    for seed in range(12):
        random = np.random.default_rng(seed)
        target, draft, neighbour = (tables(random) for _ in range(3))
        own, others, cost = chances(random), chances(random), stairs(random)
        verified = partial(by_place, speculator_at(cost), own, others, other_drawn)
        assert skew(target, draft, neighbour, verified) < 1e-12
        skews.append(skew(target, draft, neighbour, partial(at_once, cost, own, others)))
        lengths |= {verified(ids, other) for ids, other in product(DRAWN, DRAWN)}
    assert max(skews) > 0.01, "looking at a whole draft must show, or this shows nothing"
    assert lengths == set(range(DRAFTS + 1))


def test_a_draft_that_its_grammar_has_cut_is_chosen_from_as_if_it_were_whole() -> None:
    """Where it was cut follows from its ids, so the rows before may not depend on it."""
    cost = StepCost(sizes=[1, 2, 3, 4, 5], times_ms=[1.0, 1.9, 2.0, 2.05, 2.1])
    assert choose_by_place([[0.9]], [4], cost).tolist() == [1]
    assert choose_by_place([[0.9, 0.9, 0.9, 0.9]], [4], cost).tolist() == [4]
    assert choose_by_place([[0.9]], [0], cost).tolist() == [0]


def test_what_was_granted_stays_when_the_next_place_disappoints() -> None:
    """The first two were to pay for each other; that the second is hopeless is known too late for the first."""
    cost = StepCost(sizes=[1, 2, 3], times_ms=[1.0, 1.95, 2.0])
    assert choose_by_place([[0.9, 0.9]], [2], cost).tolist() == [2]
    assert choose_by_place([[0.9, 0.0]], [2], cost).tolist() == [1]
    assert choose_by_place([[0.9, 0.0]], [0], cost).tolist() == [0]


def test_where_nothing_was_drawn_places_and_wholes_choose_alike_for_one_sequence() -> None:
    random = np.random.default_rng(3)
    for _ in range(100):
        rates, cost = random.random(DRAFTS).tolist(), stairs(random)
        assert choose_by_place([rates], [0], cost).tolist() == choose_drafts([DRAFTS], [rates], cost)[2].tolist()


def test_no_confidences_of_drawn_drafts_go_to_the_planner() -> None:
    """It looks at all of a draft at once."""
    speculator = speculator_at(StepCost())
    known = chances(np.random.default_rng(1))
    found = {0: drafted(known, (0, 1, 0)), 1: drafted(known, (0, 1, 0), drawn=False)}
    speculator._draft = lambda seq_id: found[seq_id]  # type: ignore[method-assign]
    plan = SimpleNamespace(seq_ids=np.array([0, 1]))
    assert list(speculator._confidences(plan)) == [1]  # type: ignore[arg-type]
