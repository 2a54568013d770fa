"""What was used, and when: noted at once, written down and judged later, so that no reader waits for it.

Bounded: what is not flushed in time is forgotten, which makes a value look older than it is and nothing else.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .chooser import LEAST_VALUES, Chooser
from .index import EntryKey, Index, entry_key

USED_BATCH = 256  # uses written down at once
MOST_ASKED = 256  # chains that wait to be judged
MOST_LACKING = 1 << 16  # keys that were asked for and not there


@dataclass(frozen=True, slots=True)
class Asked:
    """A chain that was asked for: the first ``found`` grains were there, in these kinds. ``again``: by a request that
    had asked before, which is no further turn."""

    keys: Sequence[bytes]
    found: int
    kinds: tuple[int, ...]
    when: float
    again: bool = False


class Uses:
    """Thread-safe. ``flush`` raises what the index raises; the rest raises nothing."""

    def __init__(self, index: Index, chooser: Chooser, capacity_bytes: int, clock: Callable[[], float]) -> None:
        self._index, self._chooser, self._capacity_bytes, self._clock = index, chooser, capacity_bytes, clock
        self._lock = threading.Lock()
        self._used: dict[EntryKey, float] = {}
        self._asked: deque[Asked] = deque(maxlen=MOST_ASKED)
        self._lacking: OrderedDict[bytes, float] = OrderedDict()

    def note(self, name: EntryKey) -> bool:
        """A value was read; true when it is time to flush."""
        with self._lock:
            self._used[name] = self._clock()
            return len(self._used) >= USED_BATCH

    def note_chain(self, keys: Sequence[bytes], found: int, kinds: Sequence[int], again: bool = False) -> None:
        """A chain was asked for."""
        now = self._clock()
        self._asked.append(Asked(keys, found, tuple(kinds), now, again))
        with self._lock:
            for key in keys[found:]:
                self._lacking[key] = self._lacking.get(key, now) if again else now
                self._lacking.move_to_end(key)
            while len(self._lacking) > MOST_LACKING:
                self._lacking.popitem(last=False)

    def asked_at(self, key: bytes) -> float:
        """When a value that is now stored was asked for; now, where nobody did. All of one prompt get one time, however
        long it takes to compute: else what was written first, its beginning, would be the oldest and leave first."""
        with self._lock:
            now = self._clock()
            return min(now, self._lacking.get(key, now))

    def flush(self) -> None:
        """Writes down what was used, and lets the chooser see what was asked for."""
        with self._lock:
            used, self._used = self._used, {}
            asked = [self._asked.popleft() for _ in range(len(self._asked))]
        turns: dict[EntryKey, int] = {}
        judged: dict[bytes, int] = {}  # by the chain, that is by its last key
        for chain in asked:
            last = chain.keys[-1] if chain.keys else b""
            turn = judged.get(last, 0) if chain.again else self._judge(chain)
            judged[last] = turn
            for key in chain.keys[: chain.found]:
                for kind in chain.kinds:
                    name = entry_key(key, kind)
                    used[name], turns[name] = max(chain.when, used.get(name, 0.0)), turn
        if used:
            with self._index.change() as change:
                for name, when in used.items():
                    change.mark_used(name, when, turns.get(name, 0), self._clock())

    def _judge(self, chain: Asked) -> int:
        """The turn a request was; 0: not known (yet)."""
        if not self._chooser.watching:
            count = self._index.count()
            live = sum(row.live for row in self._index.all_segments().values())
            if count < LEAST_VALUES or not live:
                return 0
            self._chooser.start(max(1, self._capacity_bytes * count // live))
        return self._chooser.saw(chain.keys)
