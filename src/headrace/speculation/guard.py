"""The guard: pauses speculation where it loses, and tries again later. Judges by measured steps, not by estimates.

Pausing changes how fast tokens come, never which.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

LEAST_GAIN = 1.0  # tokens per second against plain decoding; below it speculation loses
JUDGED_STEPS = 24  # steps with drafts between two verdicts
FIRST_PAUSE = 32  # steps; doubled by every verdict that follows without a gain between them
LONGEST_PAUSE = 1024
PLAIN_WINDOW = 15  # plain steps remembered per number of sequences
PLAIN_SAMPLES = 3  # from which on their median counts


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A step that only decoded: sequences, rows (drafts included), tokens emitted, device milliseconds."""

    num_seqs: int
    rows: int
    emitted: int
    ms: float


class Guard:
    """``on`` says whether drafts are to be verified in the next step."""

    def __init__(self) -> None:
        self.on = True
        self.gain: float | None = None  # of the last verdict
        self._plain: dict[int, deque[float]] = {}
        self._spent = self._saved = 0.0  # milliseconds with drafts, and what plain decoding would have taken
        self._judged = self._pause_left = 0
        self._pause = FIRST_PAUSE

    def add(self, step: MeasuredStep, expected_plain_ms: float) -> bool:
        """``expected_plain_ms``: of a step of these sequences without drafts, for as long as none was measured.
        Returns whether ``on`` has changed."""
        if step.rows == step.num_seqs:
            self._plain.setdefault(step.num_seqs, deque(maxlen=PLAIN_WINDOW)).append(step.ms)
        else:
            self._spent += step.ms
            self._saved += self._plain_ms(step.num_seqs, expected_plain_ms) * step.emitted / step.num_seqs
            self._judged += 1
        return self._resume() if not self.on else self._judge()

    def _plain_ms(self, num_seqs: int, expected: float) -> float:
        measured = self._plain.get(num_seqs, ())
        return median(measured) if len(measured) >= PLAIN_SAMPLES else expected

    def _judge(self) -> bool:
        if self._judged < JUDGED_STEPS:
            return False
        self.gain = self._saved / max(self._spent, 1e-9)
        self._spent = self._saved = 0.0
        self._judged = 0
        if self.gain >= LEAST_GAIN:
            self._pause = FIRST_PAUSE
            return False
        self.on, self._pause_left = False, self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return True

    def _resume(self) -> bool:
        self._pause_left -= 1
        self.on = self._pause_left <= 0
        self._spent = self._saved = 0.0
        self._judged = 0
        return self.on
