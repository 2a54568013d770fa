"""Handed-over sequences: what a prompt engine gives to a completion engine, and the ends of the port between them.

Nothing of a sequence exists twice: its giver has forgotten it when it is offered, its taker knows it from then on. Only
copies of its KV may go ahead of it; they are nothing without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from .request import Request

LOST = "lost"
"""Why a request ends whose giver died: unless its taker has it, which then goes on."""


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A sequence whose prompt is computed and whose first tokens are drawn and reported.

    ``blocks``: the giver's KV blocks per group, 0 where a sliding window has passed; ``content``: what its worker
    copied of them, in that order. ``sent``: per group, how many leading blocks went ahead and are not in ``content``;
    a taker's port gives it content that is whole. ``deadline_s``: on the monotonic clock; later it is not worth
    placing any more, unless its taker got on meanwhile. ``grammar``: None where it did not come along; the taker then
    compiles it anew.
    """

    request: Request
    output_ids: tuple[int, ...]
    num_cached_tokens: int
    grammar: Any
    blocks: Sequence[Sequence[int]]
    content: Any
    deadline_s: float
    sent: Sequence[int] = ()


class GivingEnd(Protocol):
    """What a prompt engine sees of a port. Never waits."""

    @property
    def closed(self) -> bool:
        """Nobody takes any more."""
        ...

    @property
    def patience_s(self) -> float:
        """How long a sequence may take from its prompt's end until it is placed."""
        ...

    @property
    def moved_s(self) -> float:
        """When its taker was last seen to get on with what it has, on the monotonic clock: patience counts from then
        on. What runs there comes to an end, and makes room."""
        ...

    @property
    def takes_ahead(self) -> bool:
        """Whether copying KV before its prompt's end gains anything here."""
        ...

    def has_room_for(self, request_id: str) -> bool: ...

    def send_ahead(self, request_id: str, places: Sequence[tuple[int, int]], content: Any) -> bool:
        """Blocks (group, position) of a prompt under way. False, and nothing happens, where there is no room."""
        ...

    def drop(self, request_id: str) -> None:
        """What went ahead of a request is not needed: it has ended."""
        ...

    def offer(self, item: HandedOver) -> bool:
        """False, and nothing happens, when the queue is full or closed."""
        ...

    def offer_bare(self, item: HandedOver, why: str) -> bool:
        """Offers a sequence without its KV, for which there is no room: its taker has a store. False, and nothing
        happens, where it has none, or has enough of these."""
        ...

    def take_lost(self) -> list[HandedOver]:
        """Sequences, without their KV, that were offered and have turned out never to have come; each is told once."""
        ...

    def leave(self) -> None:
        """The giver goes; it offers nothing any more."""
        ...


class TakingEnd(Protocol):
    """What a completion engine sees of a port. Never waits."""

    @property
    def patience_s(self) -> float: ...

    def moved(self, now_s: float) -> None:
        """The taker gets on; told to who gives."""
        ...

    def take(self) -> HandedOver | None:
        """The one that has waited longest."""
        ...

    def holds(self, request_id: str) -> bool:
        """Whether it has come and was not taken yet."""
        ...

    def end_of(self, request_id: str) -> str | None:
        """Why its caller has ended a request that may be on its way: ``abort``, ``stop`` or ``lost``."""
        ...

    def end_later(self, request_id: str, reason: str) -> None:
        """An end of a request that the engine does not know: perhaps it is on its way."""
        ...

    def close(self) -> list[HandedOver]:
        """Ends the port from the taker's side; returns what was still in it."""
        ...


class HandOffPort(GivingEnd, TakingEnd, Protocol):
    """A bounded queue with both its ends in one process. Thread-safe."""


class KVMover(Protocol):
    """What a worker must know to give and take KV blocks. Both calls return at once and run in the order of steps."""

    def read_blocks(self, blocks: Sequence[int]) -> Any:
        """Queues a copy of whole blocks; the blocks may be given back at once. Returns their content to come."""
        ...

    def write_blocks(self, blocks: Sequence[int], content: Any, rows: Sequence[int]) -> Any:
        """Queues writing row ``rows[i]`` of a content into ``blocks[i]``. Returns a future that raises what failed."""
        ...


class Part(msgspec.Struct, frozen=True):
    """One tensor: what its frame's bytes are, and their CRC-32C."""

    dtype: str
    shape: tuple[int, ...]
    crc: int


class Codec(Protocol):
    """Between a worker's content and frames, for ports between processes."""

    def pack(self, content: Any) -> tuple[list[Part], list[Any]]: ...

    def unpack(self, parts: Sequence[Part], frames: Sequence[Any]) -> Any:
        """Raises HeadraceError for frames that are not what the parts say."""
        ...

    def arrange(self, contents: Sequence[Any], rows: Sequence[tuple[int, int]]) -> Any:
        """A content whose row i is row ``rows[i][1]`` of ``contents[rows[i][0]]``."""
        ...
