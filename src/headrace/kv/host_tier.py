"""A store with this host's memory before it, for the records of windows (STATE and AUX): each is a prefix's own, large,
and soon of no use, so it goes to memory first, to other engines by request, and to the store only if that is wished.

BLOCK records pass through. What is nowhere is a miss: a shorter prefix is found, down to where its window is there.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from headrace.contract.ports import Bytes

from .backend import Name
from .host_memory import HostMemory
from .neighbours import Neighbours
from .reading import DirectReader, Reader, Wanted
from .records import Match, RecordKind, RecordSpec, StoreMatch, usable_grains

if TYPE_CHECKING:
    from .connector import Store


@dataclass(slots=True)
class TierCounts:
    """Values of windows: read from this memory, from another engine's, kept here; and lost between look-up and read.
    ``window_lookups``: of prompts with blocks that were found; ``window_hits``: those with their windows as well."""

    host_hits: int = 0
    host_pulled: int = 0
    host_kept: int = 0
    host_lost: int = 0
    window_lookups: int = 0
    window_hits: int = 0


class HostTier:
    """A Store around one, which is its own from now on. ``stores_windows``: whether windows go to the store as well.

    Without ``neighbours`` only this engine's memory is looked into.
    """

    def __init__(
        self, store: Store, memory: HostMemory, neighbours: Neighbours | None = None, *, stores_windows: bool = True
    ) -> None:
        self._store, self.memory, self.neighbours = store, memory, neighbours
        self._stores_windows = stores_windows
        self.tally = TierCounts()
        self._lengths: dict[int, int] = {}  # of the records asked for, by kind

    @property
    def fast_lookups(self) -> bool:
        return self._store.fast_lookups

    def counts(self) -> dict[str, int]:
        told = self.neighbours
        directory = {} if told is None else {"directory_told": told.num_told, "directory_held": told.num_held}
        return asdict(self.tally) | directory

    # -- reading ------------------------------------------------------------------------------------------------

    def match(self, keys: Sequence[bytes], specs: Sequence[RecordSpec], again: bool = False) -> StoreMatch:
        """The longer of what the store alone gives, and of its blocks with the windows that memories hold. The store
        may be asked twice; the second time is no turn of its own."""
        windows = [spec for spec in specs if spec.match is Match.TRAILING]
        self._lengths |= {int(spec.kind): spec.bytes_per_grain for spec in windows}
        asked = self._stores_windows or not windows
        alone = self._store.match(keys, specs, again) if asked else StoreMatch(0)
        if alone.grains == len(keys) or not windows:
            self._count(alone.grains, alone.grains, windows, again)
            return alone
        others = [spec for spec in specs if spec.match is Match.ALL]
        blocks = self._store.match(keys, others, again or asked) if others else StoreMatch(len(keys))
        held = self._in_memories(keys[: blocks.grains], windows) if blocks.grains > alone.grains else set()

        def has(grain: int, kind: RecordKind) -> bool:
            return kind is RecordKind.BLOCK or (keys[grain], int(kind)) in held

        end = usable_grains(specs, blocks.grains, has)
        self._count(blocks.grains, max(end, alone.grains), windows, again)
        if end > alone.grains:
            self._store.release(alone.lease)
            return replace(blocks, grains=end, windows_elsewhere=True)
        self._store.release(blocks.lease)
        return alone

    def _count(self, blocks: int, usable: int, windows: Sequence[RecordSpec], again: bool) -> None:
        if windows and blocks and not again:
            self.tally.window_lookups += 1
            self.tally.window_hits += usable >= blocks

    def _in_memories(self, keys: Sequence[bytes], windows: Sequence[RecordSpec]) -> set[Name]:
        names = [(key, int(spec.kind)) for key in keys for spec in windows]
        here = {name for name, held in zip(names, self.memory.has(names)) if held}
        if self.neighbours is None or len(here) == len(names):
            return here
        return here | self.neighbours.find([name for name in names if name not in here])

    def get_leased(self, lease: int, key: bytes, kind: int) -> Bytes | None:
        if kind == RecordKind.BLOCK:
            return self._store.get_leased(lease, key, kind)
        value = self.memory.get(key, kind)
        if value is not None:
            self.tally.host_hits += 1
            return value
        value = self._pulled(key, kind)
        self.tally.host_pulled += value is not None
        if value is None and self._stores_windows:
            value = self._store.get_leased(lease, key, kind)
        self.tally.host_lost += value is None
        if value is not None:
            self.memory.put(key, kind, value)
        return value

    def _pulled(self, key: bytes, kind: int) -> Bytes | None:
        """From another engine. One of another length is nobody's value: kept here, it would hide the store's."""
        value = self.neighbours.get(key, kind) if self.neighbours is not None else None
        return value if value is not None and len(value) == self._lengths.get(kind, len(value)) else None

    def release(self, lease: int) -> None:
        self._store.release(lease)

    # -- saving -------------------------------------------------------------------------------------------------

    def has(self, keys: Sequence[Name]) -> list[bool]:
        """Which of them are where they belong."""
        if self._stores_windows:
            return self._store.has(keys)
        blocks = [name for name in keys if name[1] == RecordKind.BLOCK]
        stored = dict(zip(blocks, self._store.has(blocks)))
        here = self.memory.has(keys)
        return [stored.get(name, held) for name, held in zip(keys, here)]

    def put(
        self, key: bytes, kind: int, payload: Bytes, *, tenant: bytes, depth: int, turn: int, ttl_class: int
    ) -> bool:
        if kind == RecordKind.BLOCK:
            return self._store.put(key, kind, payload, tenant=tenant, depth=depth, turn=turn, ttl_class=ttl_class)
        kept = self.memory.put(key, kind, payload, ttl_class)
        self.tally.host_kept += kept
        if kept and self.neighbours is not None:
            self.neighbours.announce((key, kind))
        if not self._stores_windows:
            return kept
        return self._store.put(key, kind, payload, tenant=tenant, depth=depth, turn=turn, ttl_class=ttl_class)

    def close(self) -> None:
        """Nobody is given anything any more."""
        if self.neighbours is not None:
            self.neighbours.close()
        self.memory.clear()
        self._store.close()


class WindowReader:
    """A Reader: windows come through the tier, on the thread that asks, and blocks from another reader."""

    def __init__(self, tier: HostTier, blocks: Reader) -> None:
        self._windows, self._blocks = DirectReader(tier), blocks

    def read(self, lease: int, names: Sequence[Wanted], deadline: float) -> Generator[Bytes | None]:
        ahead = [name for name in names if name.kind == RecordKind.BLOCK]
        with closing(self._blocks.read(lease, ahead, deadline)) as blocks:
            for name in names:
                if name.kind == RecordKind.BLOCK:
                    yield next(blocks, None)
                else:
                    yield from self._windows.read(lease, [name], deadline)

    def close(self) -> None:
        """The tier is its owner's."""
        self._blocks.close()
