"""Handed-over sequences: what a prompt engine gives to a completion engine, and the port through which they meet.

Nothing of a sequence exists twice: its giver has forgotten it when it is offered, its taker knows it from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .request import Request


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A sequence whose prompt is computed and whose first tokens are drawn and reported.

    ``blocks``: the giver's KV blocks per group, 0 where a sliding window has passed; ``content``: what its worker
    copied of them, in that order. ``deadline_s``: on the monotonic clock; later it is not worth placing any more.
    """

    request: Request
    output_ids: tuple[int, ...]
    num_cached_tokens: int
    grammar: Any
    blocks: Sequence[Sequence[int]]
    content: Any
    deadline_s: float


class HandOffPort(Protocol):
    """A bounded queue with two ends. Thread-safe; neither end ever waits in it."""

    @property
    def closed(self) -> bool:
        """Nobody takes any more."""
        ...

    @property
    def has_room(self) -> bool: ...
    @property
    def patience_s(self) -> float:
        """How long a sequence may take from its prompt's end until it is placed."""
        ...

    def offer(self, item: HandedOver) -> bool:
        """False, and nothing happens, when the queue is full or closed."""
        ...

    def take(self) -> HandedOver | None:
        """The one that has waited longest."""
        ...

    def end_of(self, request_id: str) -> str | None:
        """Why its caller has ended a request that may be on its way: ``abort`` or ``stop``."""
        ...

    def close(self) -> list[HandedOver]:
        """Ends the port from the taker's side; returns what was still in it."""
        ...


class KVMover(Protocol):
    """What a worker must know to give and take KV blocks. Both calls return at once and run in the order of steps."""

    def read_blocks(self, blocks: Sequence[int]) -> Any:
        """Queues a copy of whole blocks; the blocks may be given back at once. Returns their content to come."""
        ...

    def write_blocks(self, blocks: Sequence[int], content: Any, rows: Sequence[int]) -> Any:
        """Queues writing row ``rows[i]`` of a content into ``blocks[i]``. Returns a future that raises what failed."""
        ...
