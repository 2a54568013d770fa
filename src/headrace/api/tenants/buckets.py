"""Bucket: a rate per minute. It fills steadily up to one minute's worth; what is taken may leave it in debt."""

from __future__ import annotations

import math

MINUTE_S = 60.0


class Bucket:
    """``now_s`` is any clock that only goes forward, the same in every call."""

    def __init__(self, per_minute: int, now_s: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at_s = now_s

    def level(self, now_s: float) -> float:
        """What may be taken now; negative: a debt."""
        self._level = min(self.per_minute, self._level + (now_s - self._at_s) * self.per_minute / MINUTE_S)
        self._at_s = now_s
        return self._level

    def wait_s(self, amount: float, now_s: float) -> int:
        """Whole seconds until ``amount`` is there; 0: it is. More than the bucket holds asks for a full bucket."""
        missing = min(amount, self.per_minute) - self.level(now_s)
        return max(0, math.ceil(missing * MINUTE_S / self.per_minute))

    def take(self, amount: float, now_s: float) -> None:
        self._level = self.level(now_s) - amount
