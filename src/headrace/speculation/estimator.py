"""How likely a draft is to be accepted, given that all before it were: a logistic model fitted while running.

It looks at facts of the prefix and of the draft distribution (``drafter.FACTS``), the position, and how the sequence
has fared; never at the drafted id. An estimate decides how many drafts are verified; what is accepted, the sampler
alone decides.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .drafter import FACTS

Floats = NDArray[np.float64]

LONG_MATCH = 6.0  # binary logarithm of a match's length: beyond it nothing is learnt from more
MOST_ENTROPY = 8.0  # nats
DEPTH = 16.0  # positions
INPUTS = 1 + len(FACTS) + 2  # bias, facts, position, recent acceptance
LEARNING_RATE = 0.2
DECAY = 0.9  # of a sequence's recent acceptance, per draft judged
FIRST_GUESS = 0.5  # of a sequence's acceptance, before anything was verified
# Where fitting begins: a long match, a sure distribution and a good record speak for a draft, all about as much.
FIRST_WEIGHTS = (-3.0, 4.0, -2.0, 1.0, 0.0, 3.0)


class AcceptanceEstimator:
    """Adagrad on the logistic loss, one model for all sequences, and a running acceptance per sequence."""

    def __init__(self) -> None:
        self._weights = np.array(FIRST_WEIGHTS)
        self._squares = np.full(INPUTS, 1e-2)
        self._recent: dict[int, float] = {}

    def end(self, seq_id: int) -> None:
        """A sequence is gone."""
        self._recent.pop(seq_id, None)

    def recent(self, seq_id: int) -> float:
        """Acceptance of the sequence's latest drafts, 0 to 1."""
        return self._recent.get(seq_id, FIRST_GUESS)

    def rates(self, seq_id: int, facts: Floats) -> list[float]:
        """Confidence per position for facts (k, FACTS)."""
        rates: list[float] = _logistic(self._inputs(seq_id, facts) @ self._weights).tolist()
        return rates

    def learn(self, seq_id: int, facts: Floats, accepted: int) -> None:
        """``facts`` of all drafts verified, of which the first ``accepted`` stood. What lies behind the first
        rejection was not judged and teaches nothing."""
        judged = min(len(facts), accepted + 1)
        if judged == 0:
            return
        seen, hits = self._inputs(seq_id, facts[:judged]), np.arange(judged) < accepted
        gradient = seen.T @ (_logistic(seen @ self._weights) - hits) / judged
        self._squares += gradient**2
        self._weights -= LEARNING_RATE * gradient / np.sqrt(self._squares)
        recent = self.recent(seq_id)
        for hit in hits:
            recent = DECAY * recent + (1 - DECAY) * float(hit)
        self._recent[seq_id] = recent

    def _inputs(self, seq_id: int, facts: Floats) -> Floats:
        rows = np.empty((len(facts), INPUTS))
        rows[:, 0] = 1.0
        rows[:, 1] = np.minimum(np.log2(1.0 + facts[:, 0]) / LONG_MATCH, 1.0)
        rows[:, 2] = np.minimum(facts[:, 1] / MOST_ENTROPY, 1.0)
        rows[:, 3] = facts[:, 2]
        rows[:, -2] = np.minimum(np.arange(len(facts)) / DEPTH, 1.0)
        rows[:, -1] = self.recent(seq_id)
        return rows


def _logistic(x: Floats) -> Floats:
    out: Floats = 1.0 / (1.0 + np.exp(-np.clip(x, -30.0, 30.0)))
    return out
