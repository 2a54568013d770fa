"""From what was seen to figures. Definitions are those of `vllm bench serve`, the same for whatever server answers:

An event is a chunk of the stream with a choice in it, whatever text it brings. TTFT: from sending to the first event.
E2E: to the last one. TPOT: (E2E - TTFT) / (tokens - 1), where there are two tokens and more. ITL: from one event to the
next, undivided, however many tokens it brings. Goodput: requests a second that keep every limit of the SLO.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Outcome:
    """One request as the client saw it. ``due_s``: when it should have gone out, where the load says so. ``times``:
    when each event came, and how many tokens it brought as far as it says: one where there is text and no ids."""

    sent_s: float
    num_prompt: int
    times: list[tuple[float, int]] = field(default_factory=list)
    ended_s: float = 0.0
    num_generated: int = 0
    num_cached: int = 0
    error: str | None = None
    due_s: float | None = None

    @property
    def late_s(self) -> float:
        """How long it waited here: for a place, or for this client itself."""
        return 0.0 if self.due_s is None else max(0.0, self.sent_s - self.due_s)

    @property
    def tokens(self) -> int:
        """As the server counted, else as they were seen."""
        return self.num_generated or sum(count for _, count in self.times)

    @property
    def ttft_s(self) -> float:
        return self.times[0][0] - self.sent_s

    @property
    def e2e_s(self) -> float:
        return self.times[-1][0] - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        return (self.e2e_s - self.ttft_s) / (self.tokens - 1) if self.tokens > 1 else None

    def itl_s(self) -> list[float]:
        """One gap per event after the first."""
        return [now - before for (before, _), (now, _) in zip(self.times, self.times[1:])]


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits in seconds; None: any."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def kept(self, outcome: Outcome) -> bool:
        seen = ((outcome.ttft_s, self.ttft_s), (outcome.tpot_s, self.tpot_s), (outcome.e2e_s, self.e2e_s))
        return all(limit is None or value is None or value <= limit for value, limit in seen)


def percentile(values: Sequence[float], share: float) -> float:
    """Between the two nearest values, linearly. Raises ValueError when there is none."""
    if not values:
        raise ValueError("a percentile needs a value")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
