"""The guard: pauses speculation where it loses, and tries again later. Judges by measured steps, not by estimates.

Pausing changes how fast tokens come, never which.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

LEAST_GAIN = 1.0  # tokens per second against plain decoding; below it speculation loses
SURE_GAIN = 1.5  # enough even if plain decoding's time is only an estimate
JUDGED_STEPS = 24  # steps between two verdicts
FIRST_PAUSE = 32  # steps; doubled by every verdict that follows without a gain between them
LONGEST_PAUSE = 1024
PLAIN_WINDOW = 15  # plain steps remembered per number of sequences
PLAIN_SAMPLES = 3  # from which on their median counts
LOOK = PLAIN_SAMPLES + 2  # steps of a pause that only measures: the first two still know of drafts


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A step that only decoded: sequences, tokens emitted, device milliseconds, of these for drafting. ``plain``: it
    ran as without speculation, but for the drafting."""

    num_seqs: int
    emitted: int
    ms: float
    draft_ms: float = 0.0
    plain: bool = False


class Guard:
    """``on`` says whether drafts are to be verified in the next step. Every step while it is on counts, those for which
    nothing was worth verifying too: looking for drafts costs time in each."""

    def __init__(self) -> None:
        self.on = True
        self.gain: float | None = None  # of the last verdict
        self._plain: dict[int, deque[float]] = {}
        self._pause_left = 0
        self._pause = FIRST_PAUSE
        self._begin()

    def _begin(self) -> None:
        """Nothing is known for the next verdict."""
        self._spent = self._saved = 0.0  # milliseconds while on, and what plain decoding would have taken
        self._judged = 0
        self._guessed = False  # what plain decoding would have taken is an estimate, at least in part

    def add(self, step: MeasuredStep, expected_plain_ms: float) -> bool:
        """``expected_plain_ms``: of a step of these sequences without drafts, for as long as none was measured.
        Returns whether ``on`` has changed."""
        if step.plain:
            known = self._plain.setdefault(step.num_seqs, deque(maxlen=PLAIN_WINDOW))
            known.append(step.ms - step.draft_ms)
        if not self.on:
            return self._resume()
        self._spent += step.ms
        self._saved += self._plain_ms(step.num_seqs, expected_plain_ms) * step.emitted / step.num_seqs
        self._judged += 1
        return self._judged >= JUDGED_STEPS and self._judge()

    def _plain_ms(self, num_seqs: int, expected: float) -> float:
        measured = self._plain.get(num_seqs, ())
        if len(measured) >= PLAIN_SAMPLES:
            return median(measured)
        self._guessed = True
        return expected

    def _judge(self) -> bool:
        gain = self.gain = self._saved / max(self._spent, 1e-9)
        guessed = self._guessed
        self._begin()
        if gain >= (SURE_GAIN if guessed else LEAST_GAIN):
            self._pause = FIRST_PAUSE
            return False
        self.on = False
        if guessed and gain >= LEAST_GAIN:
            self._pause_left = LOOK
        else:
            self._pause_left = self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return True

    def _resume(self) -> bool:
        self._pause_left -= 1
        self.on = self._pause_left <= 0
        return self.on
