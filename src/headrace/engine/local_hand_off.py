"""The port between the two engines of one process: a bounded queue, and who has ended meanwhile."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from headrace.contract.handoff import HandedOver

PATIENCE_S = 60.0  # from a prompt's end, or while the taker stands still, until its sequence has a place there
CAPACITY = 16


class LocalHandOff:
    """A HandOffPort between two engines of one process. ``wake`` is called after an offer."""

    def __init__(self, capacity: int = CAPACITY, patience_s: float = PATIENCE_S) -> None:
        self._capacity = capacity
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._items: deque[HandedOver] = deque()
        self._ends: dict[str, str] = {}
        self._closed = False
        self.moved_s = -math.inf
        self.wake: Callable[[], None] = lambda: None

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def has_room(self) -> bool:
        return len(self._items) < self._capacity

    def moved(self, now_s: float) -> None:
        self.moved_s = now_s

    def has_room_for(self, request_id: str) -> bool:
        return self.has_room

    takes_ahead = False  # a copy inside one process is made in one go

    def send_ahead(self, request_id: str, places: Sequence[tuple[int, int]], content: Any) -> bool:
        return False

    def drop(self, request_id: str) -> None:
        """Nothing ever went ahead."""

    def take_lost(self) -> list[HandedOver]:
        return []

    def leave(self) -> None:
        """What was offered can still be taken."""

    def holds(self, request_id: str) -> bool:
        with self._lock:
            return any(item.request.request_id == request_id for item in self._items)

    def end_later(self, request_id: str, reason: str) -> None:
        """The pair's client has said so already, by ``end``."""

    @property
    def patience_s(self) -> float:
        return self._patience_s

    @property
    def num_waiting(self) -> int:
        return len(self._items)

    def offer(self, item: HandedOver) -> bool:
        with self._lock:
            if self._closed or not self.has_room:
                return False
            self._items.append(item)
        self.wake()
        return True

    def take(self) -> HandedOver | None:
        with self._lock:
            return self._items.popleft() if self._items else None

    def end(self, request_id: str, reason: str) -> None:
        """A caller's wish, kept until ``forget`` because the sequence may be on its way at this moment."""
        with self._lock:
            self._ends.setdefault(request_id, reason)

    def end_of(self, request_id: str) -> str | None:
        with self._lock:
            return self._ends.get(request_id)

    def forget(self, request_id: str) -> None:
        """The request has had its last delta."""
        with self._lock:
            self._ends.pop(request_id, None)

    def offer_bare(self, item: HandedOver, why: str) -> bool:
        return False  # what fails in one process fails for good

    def close(self) -> list[HandedOver]:
        with self._lock:
            self._closed = True
            left = list(self._items)
            self._items.clear()
            return left
