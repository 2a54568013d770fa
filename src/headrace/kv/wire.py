"""What a store's clients and its server say to one another: a header (MessagePack), then payloads as frames.

A request has a number, and its answer the same one; nothing is answered twice. Bounds are checked while decoding, so
that no message costs more than its size; values that are asked for are no more than one frame may hold (`that_fit`).
Knows no sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from .keys import GRAIN

MOST_ITEMS = 4096  # keys, values or chains in one message
MOST_FRAME_BYTES = 64 << 20

Key = Annotated[bytes, Meta(min_length=32, max_length=32)]
Tag = Annotated[bytes, Meta(min_length=16, max_length=16)]
Kind = Annotated[int, Meta(ge=0, le=255)]
Count = Annotated[int, Meta(ge=0, le=1 << 40)]
Crc = Annotated[int, Meta(ge=0, lt=1 << 32)]
Name = tuple[Key, Kind]
Address = Annotated[str, Meta(min_length=1, max_length=256)]
Names = Annotated[list[Name], Meta(max_length=MOST_ITEMS)]


class KindRule(msgspec.Struct, frozen=True, array_like=True):
    """A record kind a client needs: of every grain (``window`` 0), or of those its window still sees."""

    kind: Kind
    window: Count = 0

    def first_needed(self, num_grains: int) -> int:
        return 0 if self.window == 0 else max(0, num_grains * GRAIN - self.window + 1) // GRAIN


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="t"):
    """Root of all; ``number`` is the client's."""

    number: Count


class Check(Message, frozen=True, kw_only=True, tag="check"):
    """How much of a chain is here? Grants a lease on what is. ``again``: the same request has asked before, about other
    kinds say: it is no further turn of a conversation."""

    keys: Annotated[list[Key], Meta(max_length=MOST_ITEMS)]
    rules: Annotated[list[KindRule], Meta(min_length=1, max_length=8)]
    lease_s: Annotated[float, Meta(gt=0, le=600)] = 30.0
    again: bool = False


class Has(Message, frozen=True, kw_only=True, tag="has"):
    """Which of these are here? No lease, no promise."""

    names: Names


class Get(Message, frozen=True, kw_only=True, tag="get"):
    """Values under a lease. ``ranges``: (offset, length) per name; none: whole values. What does not fit into one
    answer beside the names before it (``that_fit``; a part counts as its whole value) is a miss: ask for it alone."""

    lease: Count
    names: Names
    ranges: Annotated[list[tuple[Count, Count]], Meta(max_length=MOST_ITEMS)] | None = None


class Put(Message, frozen=True, kw_only=True, tag="put"):
    """Values to store unless they are here; one frame each, in this order, with its CRC-32C."""

    names: Names
    crcs: Annotated[list[Crc], Meta(max_length=MOST_ITEMS)]
    tenant: Tag
    depths: Annotated[list[Count], Meta(max_length=MOST_ITEMS)]
    turn: Annotated[int, Meta(ge=0, le=1 << 31)] = 1
    ttl_class: Annotated[int, Meta(ge=0, le=1)] = 0


class Release(Message, frozen=True, kw_only=True, tag="release"):
    """A lease is not needed any more."""

    lease: Count


class Announce(Message, frozen=True, kw_only=True, tag="announce"):
    """The engine that listens at ``address`` holds these in its memory."""

    address: Address
    names: Names


class Withdraw(Message, frozen=True, kw_only=True, tag="withdraw"):
    """The engine at ``address`` is gone, or does not answer: nothing is there any more."""

    address: Address


class Find(Message, frozen=True, kw_only=True, tag="find"):
    """Which engines hold these in their memory?"""

    names: Names


class Ask(Message, frozen=True, kw_only=True, tag="stat"):
    """What the server holds and has done."""


class Checked(Message, frozen=True, kw_only=True, tag="checked"):
    """The first ``grains`` of the chain can be had until the lease ends; ``lease`` 0: there is none.

    ``turn``: that in which the deepest of them was stored.
    """

    grains: int
    kinds: list[Kind]
    lease: int
    expires_in_s: float
    turn: int


class Held(Message, frozen=True, kw_only=True, tag="held"):
    held: list[bool]


class Got(Message, frozen=True, kw_only=True, tag="got"):
    """Which values follow as frames, in the order asked, and their CRC-32C; the others are misses."""

    there: list[bool]
    crcs: list[int]


class Stored(Message, frozen=True, kw_only=True, tag="stored"):
    """Which are stored now."""

    stored: list[bool]


class Found(Message, frozen=True, kw_only=True, tag="found"):
    """Addresses of engines, for each name, the latest first. They may be gone."""

    holders: list[list[str]]


class Facts(Message, frozen=True, kw_only=True, tag="facts"):
    facts: dict[str, int | float | str]


class Refused(Message, frozen=True, kw_only=True, tag="refused"):
    """A request that cannot be served as asked; nothing was done."""

    reason: str


Request = Check | Has | Get | Put | Release | Announce | Withdraw | Find | Ask
Answer = Checked | Held | Got | Stored | Found | Facts | Refused


def that_fit(sizes: Sequence[int]) -> list[bool]:
    """Which values one answer takes, in the order asked: together no more than ``MOST_FRAME_BYTES``.

    A name may be asked for four thousand times in one small message; each value alone fits."""
    fit, total = [], 0
    for size in sizes:
        fit.append(total + size <= MOST_FRAME_BYTES)
        total += size if fit[-1] else 0
    return fit
