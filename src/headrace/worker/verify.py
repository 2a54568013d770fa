"""The verification planner where the newest confidences are: the C++ core's function in numpy, row for row.

The core chooses while it plans (``choose_drafts``), with confidences as old as the step before the one in flight. The
device chooses again among what the plan has reserved, with the newest: it may only shorten (ADR 9).
``drafts_for_total`` shares out a total that was fixed elsewhere. Never an acceptance: the sampler alone decides that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace._core import StepCost

Floats = NDArray[np.float64]


def _ranked(num_drafts: Sequence[int], confidences: Sequence[Sequence[float]]) -> tuple[Floats, NDArray[np.int64]]:
    """(rate, sequence) of every draft of the batch, likeliest first; equal rates in the order of sequences.

    A draft's rate is the product of the confidences up to it; 1 for sequences of which none are known.
    """
    rates: list[Floats] = [np.empty(0)]
    owners = [np.empty(0, dtype=np.int64)]
    for i, (count, known) in enumerate(zip(num_drafts, confidences)):
        own = np.asarray(known[:count], dtype=np.float64).cumprod() if len(known) else np.ones(count)
        rates.append(own)
        owners.append(np.full(len(own), i, dtype=np.int64))
    flat = np.concatenate(rates)
    order = np.argsort(-flat, kind="stable")
    return flat[order], np.concatenate(owners)[order]


def choose_drafts(
    num_drafts: Sequence[int], confidences: Sequence[Sequence[float]], cost: StepCost, max_total: int = 2**31 - 1
) -> tuple[int, float, NDArray[np.int64]]:
    """(total rows, expected tokens, drafts per sequence): the total with the most tokens per millisecond.

    Every sequence keeps one row. The first of equal totals wins; none past the last captured size is chosen. With no
    curve known, every draft is verified that has room.
    """
    num_seqs = len(num_drafts)
    rates, owners = _ranked(num_drafts, confidences)
    most = min(len(rates), max(0, max_total - num_seqs))
    expected = num_seqs + np.concatenate([[0.0], np.cumsum(rates[:most])])
    if cost.sizes:
        times = np.array([cost.time_ms(num_seqs + k, num_seqs) for k in range(most + 1)])
        best = int(np.argmax(expected / times))  # beyond the last size: infinite time, no tokens per millisecond
    else:
        best = most
    return num_seqs + best, float(expected[best]), np.bincount(owners[:best], minlength=num_seqs)


def choose_by_place(confidences: Sequence[Sequence[float]], reach: Sequence[int], cost: StepCost) -> NDArray[np.int64]:
    """As ``choose_drafts``, where some sequences' drafts were drawn from distributions, to be judged by rejection
    sampling. All confidences are known, one per draft. ``reach``: of a drawn sequence, how many drafts were asked for
    (how many there are may follow from their ids, as under a grammar); 0 for the others. Returns drafts per sequence.

    What rejection sampling emits has the target's distribution only if whether draft j is verified was settled by what
    was known before j was drawn. Its own confidence was; those behind it follow from its id, and a choice that looks at
    them verifies some ids of draft j rather than others. So the choice is made place by place. Of a drawn sequence only
    the confidences up to the place are looked at, the rest is taken to be as likely as the last of these, and what was
    granted at an earlier place stays. Sequences draw apart from each other: one may know all of another's.
    """
    num_seqs = len(confidences)
    counts, settled = np.zeros(num_seqs, dtype=np.int64), float(num_seqs)
    going = list(range(num_seqs))
    for place in range(max(map(len, confidences), default=0)):
        going = [i for i in going if len(confidences[i]) > place]
        chances = [_foreseen(confidences[i], place, reach[i]) for i in going]
        granted = np.flatnonzero(_next_rows(chances, num_seqs, num_seqs + int(counts.sum()), settled, cost))
        settled += sum(float(chances[k][0]) for k in granted)
        going = [going[k] for k in granted]
        counts[going] += 1
    return counts


def _foreseen(known: Sequence[float], place: int, reach: int) -> Floats:
    """That the draft at ``place``, and each one behind it, will be accepted with all before it."""
    steps = np.array(known[place:], dtype=np.float64)
    if reach:
        steps = np.full(max(1, reach - place), known[place], dtype=np.float64)
    steps[0] = np.prod(known[: place + 1])
    return steps.cumprod()


def _next_rows(
    chances: Sequence[Floats], num_seqs: int, rows: int, expected: float, cost: StepCost
) -> NDArray[np.int64]:
    """How many of each sequence's next drafts make the most tokens per millisecond, on top of ``rows`` that are settled
    and bring ``expected`` tokens."""
    flat = np.concatenate([np.empty(0), *chances])
    owners = np.repeat(np.arange(len(chances)), [len(own) for own in chances])
    order = np.argsort(-flat, kind="stable")
    times = np.array([cost.time_ms(rows + k, num_seqs) for k in range(len(flat) + 1)])
    best = int(np.argmax((expected + np.concatenate([[0.0], np.cumsum(flat[order])])) / times))
    return np.bincount(owners[order[:best]], minlength=len(chances))


def drafts_for_total(
    num_drafts: Sequence[int], confidences: Sequence[Sequence[float]], total: int
) -> NDArray[np.int64]:
    """Drafts per sequence for a total that was fixed before."""
    _, owners = _ranked(num_drafts, confidences)
    return np.bincount(owners[: max(0, total - len(num_drafts))], minlength=len(num_drafts))
