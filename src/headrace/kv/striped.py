"""A store over twelve others of any kind: a value is cut into ten shares and two of parity, one for each place.

A read asks eleven places; the twelfth when one of them has nothing or is late; any ten shares give the value. So two
places may be gone, and a slow one costs nothing. What is damaged is refused and counted, never decoded into something
else: with fewer than ten good shares a value is a miss. Every wait has a deadline; a place that hangs is left behind.
"""

from __future__ import annotations

import queue
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.contract.errors import StoreError
from headrace.contract.ports import Bytes

from .ages import CHAT
from .backend import Backend, Name, match_along, part_of
from .counts import Counts
from .crew import Answers, Crew
from .health import Health
from .records import RecordSpec, StoreMatch
from .segment import MOST_VALUE_BYTES, PAGE
from .shares import DATA, PARITY, SHARES, Code, Share, Stripe, read_share

MOST_STRIPED_BYTES = DATA * (MOST_VALUE_BYTES - PAGE)
LOOKUPS = 64  # grains of a chain asked for at once
HEDGE_S = 0.02  # after which the twelfth share is asked for
TIMEOUT_S = 5.0
PUT_GRACE_S = 0.5  # how long a put that has its ten waits for the others


@dataclass(slots=True)
class StripedCounts(Counts):
    """``hedged``: reads that asked the twelfth place; ``degraded_puts``: values that lack a share; ``refused``: values
    that were not read because too few good shares were left."""

    hedged: int = 0
    degraded_puts: int = 0
    refused: int = 0


class StripedStore:
    """A Backend over twelve, which are its own from now on. Raises StoreError without pyeclib, or for another number.

    Two places must not be one: it would keep one share and take the other for stored.
    """

    fast_lookups = False

    def __init__(
        self,
        places: Sequence[Backend],
        *,
        hedge_s: float = HEDGE_S,
        timeout_s: float = TIMEOUT_S,
        put_grace_s: float = PUT_GRACE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if len(places) != SHARES:
            raise StoreError("striped", f"needs {SHARES} places, not {len(places)}")
        self._code = Code()
        self._crew = Crew(places)
        self._hedge_s, self._timeout_s, self._put_grace_s, self._clock = hedge_s, timeout_s, put_grace_s, clock
        self.counts = StripedCounts()
        self._health = Health("twelve places", clock)
        self._closed = False

    @staticmethod
    def _order(key: bytes) -> list[int]:
        """Who keeps which share: it begins elsewhere for every key, so that all get as many of each kind."""
        first = int.from_bytes(key[:4], "little") % SHARES
        return [(first + index) % SHARES for index in range(SHARES)]

    def _ask_all(self, question: Callable[[Backend], Any]) -> Answers:
        answers: Answers = queue.SimpleQueue()
        for which in range(SHARES):
            self._crew.ask(which, question, answers)
        return answers

    # -- reading ------------------------------------------------------------------------------------------------

    def has(self, keys: Sequence[Name]) -> list[bool]:
        """Which of them ten places have; as soon as that is known, whoever has not answered yet."""
        if self._closed or not keys:
            return [False] * len(keys)
        answers, deadline = self._ask_all(lambda place: place.has(keys)), self._clock() + self._timeout_s
        yes, no = [0] * len(keys), [0] * len(keys)
        for _ in range(SHARES):
            held = self._next(answers, deadline)
            for i in range(len(keys)):
                there = held is not None and held[i]
                yes[i], no[i] = yes[i] + there, no[i] + (not there)
            if all(y >= DATA or n > PARITY for y, n in zip(yes, no)):
                break
        return [count >= DATA for count in yes]

    def _next(self, answers: Answers, deadline: float) -> Any:
        """An answer; None for one that did not come in time."""
        try:
            return answers.get(timeout=max(0.0, deadline - self._clock()))[1]
        except queue.Empty:
            return None

    def match(self, keys: Sequence[bytes], specs: Sequence[RecordSpec], again: bool = False) -> StoreMatch:
        del again  # nobody counts turns here
        end = match_along(keys, specs, self.has, LOOKUPS)
        return StoreMatch(end, self._turn_of(keys[end - 1], specs) if end else 0)

    def _turn_of(self, key: bytes, specs: Sequence[RecordSpec]) -> int:
        """The turn a grain was stored in, as the first place tells that knows."""
        answers = self._ask_all(lambda place: place.match([key], specs[:1], again=True))
        deadline = self._clock() + self._timeout_s
        for _ in range(SHARES):
            match = self._next(answers, deadline)
            if match is not None and match.turn:
                return int(match.turn)
        return 0

    def get(self, key: bytes, kind: int) -> Bytes | None:
        """The value, checked; None is a miss, whatever the reason."""
        value = None if self._closed else _Read(self, key, kind).value()
        self.counts.hits += value is not None
        self.counts.misses += value is None
        return value

    def get_range(self, key: bytes, kind: int, offset: int, length: int) -> Bytes | None:
        """A part of a value; a miss where it does not reach so far. Reads, and checks, all of it."""
        return part_of(self.get(key, kind), offset, length)

    def get_leased(self, lease: int, key: bytes, kind: int) -> Bytes | None:
        del lease
        return self.get(key, kind)

    def release(self, lease: int) -> None:
        """There was none."""

    # -- writing ------------------------------------------------------------------------------------------------

    def put(
        self,
        key: bytes,
        kind: int,
        payload: Bytes,
        *,
        tenant: bytes = bytes(16),
        depth: int = 0,
        turn: int = 1,
        ttl_class: int = CHAT,
    ) -> bool:
        """Stores what is not here; true when ten places have their shares afterwards. A value that lost some gets them
        again. Where fewer took theirs, what they took stays until it is evicted: it is never read."""
        if self._closed or not 0 < len(payload) <= MOST_STRIPED_BYTES:
            self.counts.failed_puts += 1
            return False
        answers: Answers = queue.SimpleQueue()
        fields: dict[str, Any] = {"tenant": tenant, "depth": depth, "turn": turn, "ttl_class": ttl_class}
        for which, share in zip(self._order(key), self._code.cut(key, kind, payload)):
            self._crew.ask(which, lambda place, share=share: place.put(key, kind, share, **fields), answers)  # type: ignore[misc]
        taken = self._count_taken(answers)
        stored = taken >= DATA
        self.counts.puts += stored
        self.counts.failed_puts += not stored
        self.counts.degraded_puts += DATA <= taken < SHARES
        if stored:
            self._health.worked("writing")
        else:
            self._health.failed("writing", f"{taken} of {SHARES} places took a share, {DATA} are needed")
        return stored

    def _count_taken(self, answers: Answers) -> int:
        """How many places took their share. Once ten have, the others are not waited for long."""
        deadline, taken = self._clock() + self._timeout_s, 0
        for _ in range(SHARES):
            took = self._next(answers, deadline) is True
            taken += took
            if took and taken == DATA:
                deadline = min(deadline, self._clock() + self._put_grace_s)
        return taken

    def delete(self, key: bytes, kind: int) -> bool:
        answers, deadline = self._ask_all(lambda place: place.delete(key, kind)), self._clock() + self._timeout_s
        return sum(self._next(answers, deadline) is True for _ in range(SHARES)) > 0

    def drop_share(self, which: int, key: bytes, kind: int) -> None:
        """A damaged one: the next put of the value writes it again."""
        self.counts.damaged += 1
        self._crew.ask(which, lambda place: place.delete(key, kind), queue.SimpleQueue())

    # -- looking after it ---------------------------------------------------------------------------------------

    def names(self) -> Iterator[Name]:
        """What ten places have. Raises StoreError when fewer can be listed."""
        answers, deadline = self._ask_all(lambda place: list(place.names())), self._clock() + self._timeout_s
        lists = [found for _ in range(SHARES) if (found := self._next(answers, deadline)) is not None]
        if len(lists) < DATA:
            raise StoreError("striped", f"only {len(lists)} of {SHARES} places can be listed")
        held = Counter(name for found in lists for name in set(found))
        return iter([name for name, count in held.items() if count >= DATA])

    def stat(self) -> dict[str, Any]:
        """Counts of this process."""
        return asdict(self.counts)

    def close(self) -> None:
        """Later calls store and find nothing."""
        if not self._closed:
            self._closed = True
            self._crew.close()


class _Read:
    """One read: eleven places are asked at once, the twelfth by a timer or for one that has nothing."""

    def __init__(self, store: StripedStore, key: bytes, kind: int) -> None:
        self._store, self._key, self._kind = store, key, kind
        self._answers: Answers = queue.SimpleQueue()
        self._rest = store._order(key)
        self._outstanding = 0
        self._stripes: dict[Stripe, dict[int, Share]] = {}

    def _ask(self, count: int) -> None:
        key, kind = self._key, self._kind
        for _ in range(min(count, len(self._rest))):
            self._store._crew.ask(self._rest.pop(0), lambda place: place.get(key, kind), self._answers)
            self._outstanding += 1

    def value(self) -> Bytes | None:
        self._ask(SHARES - 1)
        started = self._store._clock()
        while self._possible():
            limit = started + (self._store._hedge_s if self._rest else self._store._timeout_s)
            try:
                which, raw = self._answers.get(timeout=max(0.0, limit - self._store._clock()))
            except queue.Empty:
                if not self._rest:
                    break  # the deadline
                self._store.counts.hedged += 1
                self._ask(1)
                continue
            self._outstanding -= 1
            whole = self._take(which, raw)
            if whole is not None:
                return self._store._code.join(whole)
        self._store.counts.refused += bool(self._stripes)
        return None

    def _possible(self) -> bool:
        """Whether ten shares of one value may still come together: a place that hangs does not delay a miss."""
        best = max(map(len, self._stripes.values()), default=0)
        return best + self._outstanding + len(self._rest) >= DATA

    def _take(self, which: int, raw: Bytes | None) -> dict[int, Share] | None:
        """The ten shares of a value, once they are here."""
        share = None if raw is None else read_share(raw, self._key, self._kind)
        if share is None:
            if raw is not None:
                self._store.drop_share(which, self._key, self._kind)
            self._ask(1)
            return None
        shares = self._stripes.setdefault(share.stripe, {})
        shares[share.index] = share
        return shares if len(shares) == DATA else None
