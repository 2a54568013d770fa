"""One sequence's dealings with the store: its chain of keys, what was fetched for it, what it seals.

The loop's thread asks; a fetch thread answers, once, before a deadline or not at all. What was fetched belongs to the
session until it is loaded or cancelled, and counts against the connector's budget as long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from headrace._core import ExtraKeys, grain_chain, grain_root
from headrace.contract.errors import reason
from headrace.contract.ports import Bytes

from .ages import CHAT
from .keys import GRAIN, Extras, next_key
from .reading import Wanted
from .records import RecordKind, RecordSpec, StoreMatch, most_grains, usable_grains

if TYPE_CHECKING:
    from .connector import OpenStore, StoreConnector

LEAST_GAIN = 64  # tokens; fewer are computed sooner than loaded

Payloads = dict[tuple[int, int], Bytes]
"""By (grain, kind)."""


class StoreSession:
    """A KVSession. ``num_local`` as for ``KVConnector.open``; ``tenant``: the mark of whose it is."""

    def __init__(
        self,
        connector: StoreConnector,
        token_ids: Sequence[int],
        salt: str,
        adapter: str,
        num_local: int,
        tenant: bytes,
    ) -> None:
        self._connector = connector
        self._prompt, self._salt, self._extras = token_ids, salt, Extras(adapter=adapter)
        self.tenant, self.turn, self.ttl_class = tenant, 1, CHAT
        self._first_grain = max(0, num_local) // GRAIN
        self._most = most_grains(connector.specs, len(token_ids))
        gain = min(self._most * GRAIN, len(token_ids) - 1) - num_local
        self.worth_asking = num_local >= 0 and gain >= LEAST_GAIN
        self._lock = threading.Lock()
        self._answer: int | None = 0  # None: a fetch is under way
        self._deadline = 0.0
        self._payloads: Payloads = {}
        self._taken = 0  # bytes of the budget
        self._nameless: list[Sequence[int]] = []  # sealed grains whose keys are not made yet
        self._keys: list[bytes] = []

    # -- loading, the loop's side -------------------------------------------------------------------------------

    def begin(self, deadline: float) -> None:
        """A fetch is about to start."""
        self._answer, self._deadline = None, deadline

    @property
    def first(self) -> int:
        return self._first_grain * GRAIN

    def num_external_tokens(self) -> int | None:
        with self._lock:
            if self._answer is None and time.monotonic() > self._deadline:
                self._answer = 0
                self._connector.tally.late += 1
            return self._answer

    def load(self, blocks: Sequence[tuple[int, int, int]]) -> Future[None]:
        payloads, taken = self._payloads, self._taken
        self._payloads, self._taken = {}, 0
        try:
            done = self._connector.mover.write(blocks, payloads)
        except Exception:
            self._connector.budget.give(taken)
            raise
        done.add_done_callback(lambda _: self._connector.budget.give(taken))
        return done

    def cancel(self) -> None:
        with self._lock:
            self._answer, self._payloads = self._answer or 0, {}
            taken, self._taken = self._taken, 0
        self._connector.budget.give(taken)

    # -- loading, the fetch thread's side -----------------------------------------------------------------------

    def fetch(self) -> None:
        """Finds, reads and checks what the store has of the prompt."""
        payloads: Payloads = {}
        end, taken = 0, 0
        try:
            opened = self._connector.wait_opened(self._deadline - time.monotonic())
            if opened is not None:
                payloads, end, taken = self._read(opened)
        except Exception as error:  # the connector guards the store; a reader beside it, or this, may be at fault
            self._connector.health.failed("a fetch", reason(error))
        finally:
            self._settle(payloads, end, taken)

    def _settle(self, payloads: Payloads, end: int, taken: int) -> None:
        with self._lock:
            wanted = self._answer is None
            if wanted:
                self._payloads, self._taken, self._answer = payloads, taken, end * GRAIN
                self._connector.tally.hit_tokens += max(0, end - self._first_grain) * GRAIN
        if not wanted:  # late, or cancelled meanwhile
            self._connector.budget.give(taken)

    def _read(self, opened: OpenStore) -> tuple[Payloads, int, int]:
        """Payloads, how many grains from the start they make usable, and the bytes taken for them."""
        specs, store = self._connector.specs, opened.store
        extras = ExtraKeys(adapter=self._extras.adapter)
        prompt = np.asarray(self._prompt[: self._most * GRAIN], np.int32)
        keys = grain_chain(self._root(opened), prompt, extras)
        match = store.match(keys, specs)
        if match.grains > 1:  # what everybody shares says nothing about a conversation
            self.turn = match.turn + 1
        try:
            self._connector.learn(keys, match)
            return self._fetch(opened, keys, match) if match.grains > self._first_grain else ({}, 0, 0)
        finally:
            store.release(match.lease)

    def _fetch(self, opened: OpenStore, keys: Sequence[bytes], match: StoreMatch) -> tuple[Payloads, int, int]:
        specs, end = self._connector.specs, match.grains
        wanted = [
            (grain, spec)
            for grain in range(self._first_grain, end)
            for spec in specs
            if grain >= spec.first_needed(end)
        ]
        size = sum(spec.bytes_per_grain for _, spec in wanted)
        if not self._connector.budget.take(size, self._deadline - time.monotonic()):
            self._connector.tally.no_memory += 1
            return {}, 0, 0
        names = [Wanted(keys[grain], int(spec.kind), spec.bytes_per_grain) for grain, spec in wanted]
        try:
            with closing(opened.reader.read(match.lease, names, self._deadline)) as values:
                payloads = self._take(zip(wanted, values), keys)
            return payloads, self._usable(payloads, end), size
        except BaseException:
            self._connector.budget.give(size)
            raise

    def _take(self, values: Iterable[tuple[tuple[int, RecordSpec], Bytes | None]], keys: Sequence[bytes]) -> Payloads:
        """What comes, up to the first value without which the rest is of no use."""
        payloads: Payloads = {}
        for (grain, spec), value in values:
            if value is not None:
                payloads[grain, int(spec.kind)] = value
            else:
                self._connector.missed(keys[grain], int(spec.kind))
                if spec.kind is RecordKind.BLOCK:
                    break
            if self._answer is not None:  # cancelled, or late
                break
        return payloads

    def _usable(self, payloads: Payloads, end: int) -> int:
        """The prefix that what came allows: the least over all kinds, after the reads."""

        def has(grain: int, kind: RecordKind) -> bool:
            return grain < self._first_grain or (grain, int(kind)) in payloads

        return usable_grains(self._connector.specs, end, has)

    # -- saving -------------------------------------------------------------------------------------------------

    def seal(self, index: int, token_ids: Sequence[int], blocks: Sequence[int]) -> None:
        if index == len(self._keys) + len(self._nameless):
            self._nameless.append(token_ids)
        opened = self._connector.opened
        if opened is None:  # still opening
            self._connector.tally.dropped += 1
            return
        for grain in self._nameless:
            parent = self._keys[-1] if self._keys else self._root(opened)
            self._keys.append(next_key(parent, grain, self._extras.of_grain(len(self._keys) * GRAIN)))
        self._nameless = []
        if index < len(self._keys):
            self._connector.save(self, self._keys[index], index, blocks)

    def _root(self, opened: OpenStore) -> bytes:
        return grain_root(opened.name_space, self._salt)
