"""The drafter port: proposes how sequences may go on. A proposal costs time when it is wrong, never correctness.

The worker owns a drafter and calls it on its device thread, after a step's tokens are known. What a drafter is told
are tokens that stand; a sequence that starts again (after a preemption) begins anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.contract.plan import IntArray
from headrace.contract.request import SamplingParams

FACTS = ("match_length", "entropy", "maximum")


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed ids (k,) of one sequence, and what is known of how good they are.

    ``facts`` (k, FACTS) float64 per position: tokens matched, entropy (nats) and maximum of the draft distribution.
    They depend on the prefix and on that *distribution* only, never on the id that was drawn from it: what is trimmed
    must not depend on what is judged. A later position's do follow from the ids before it (``verify.choose_by_place``).
    ``probs``: the distributions (k, V) the ids were drawn from; None where the ids are the only ones proposed.
    """

    ids: IntArray
    facts: NDArray[np.float64]
    probs: Any = None

    def __len__(self) -> int:
        return len(self.ids)

    def first(self, count: int) -> Draft:
        """The first ``count`` positions."""
        if count >= len(self.ids):
            return self
        return Draft(self.ids[:count], self.facts[:count], None if self.probs is None else self.probs[:count])


@dataclass(frozen=True, slots=True)
class Wanted:
    """One sequence that wants drafts: its tokens so far, and how many are wanted at most. ``blocks`` (G, max_blocks):
    its block tables, with room for the draft; only there for drafters that are not eager. ``sampling``: how the
    sequence draws."""

    seq_id: int
    tokens: IntArray
    most: int
    blocks: IntArray | None = None
    sampling: SamplingParams | None = None


class Drafter(Protocol):
    """``eager``: proposes as soon as a step is sampled, because it is nearly free. Others are asked only once rows
    for their drafts have been promised."""

    eager: bool

    def begin(self, seq_id: int, tokens: IntArray) -> None:
        """A sequence starts, with everything known of it."""
        ...

    def extend(self, seq_id: int, tokens: IntArray) -> None:
        """Tokens that were accepted or sampled."""
        ...

    def end(self, seq_id: int) -> None:
        """A sequence is gone, or was preempted. Unknown ids are passed over."""
        ...

    def propose(self, wanted: Sequence[Wanted]) -> list[Draft]:
        """One draft for each, possibly empty, at most ``most`` long."""
        ...


def matched(ids: Sequence[int], length: int) -> Draft:
    """A draft found by a match of ``length`` tokens: all its weight lies on one id per position."""
    facts = np.tile(np.array([float(length), 0.0, 1.0]), (len(ids), 1))
    return Draft(np.array(ids, dtype=np.int32), facts)


EMPTY = matched([], 0)
