"""How likely a draft is to be accepted, given that all before it were: a logistic model fitted while running.

It looks at facts of the prefix and of the draft distribution (``drafter.FACTS``), the position, and how the sequence
has fared; never at the drafted id. An estimate decides how many drafts are verified; what is accepted, the sampler
alone decides.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SCALES = np.array([16.0, 8.0, 1.0])  # of the facts: brings each to about 0..1, so that one learning rate fits all
DEPTH = 16.0  # positions
INPUTS = 1 + len(SCALES) + 2  # bias, facts, position, recent acceptance
LEARNING_RATE = 0.2
DECAY = 0.9  # of a sequence's recent acceptance, per draft judged
FIRST_GUESS = 0.8  # before anything was verified: verifying is how one learns


class AcceptanceEstimator:
    """Adagrad on the logistic loss, one model for all sequences, and a running acceptance per sequence."""

    def __init__(self) -> None:
        self._weights = np.zeros(INPUTS)
        self._weights[0] = np.log(FIRST_GUESS / (1 - FIRST_GUESS))
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
        rows[:, 1:-2] = np.minimum(facts / SCALES, 1.0)
        rows[:, -2] = np.minimum(np.arange(len(facts)) / DEPTH, 1.0)
        rows[:, -1] = self.recent(seq_id)
        return rows


def _logistic(x: Floats) -> Floats:
    out: Floats = 1.0 / (1.0 + np.exp(-np.clip(x, -30.0, 30.0)))
    return out
