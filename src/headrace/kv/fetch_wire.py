"""What an engine and the process that fetches for it say to each other. Values go through the ring, never through here.

Every ``Fetch`` is answered once, by a ``Fetched``; a slot it names is the asker's until it says ``Free``.
"""

from __future__ import annotations

import msgspec

from .opening import Errand


class Begin(msgspec.Struct, tag=True):
    """The first message: which store to open, and the ring to fill."""

    errand: Errand
    ring: str
    num_slots: int
    slot_bytes: int
    parent: int


class Fetch(msgspec.Struct, tag=True):
    """Process ``owner`` wants a value of ``length`` bytes until ``deadline``, of the machine's monotonic clock."""

    number: int
    owner: int
    lease: int
    key: bytes
    kind: int
    length: int
    deadline: float


class Cancel(msgspec.Struct, tag=True):
    """Not wanted any more; the answer comes all the same."""

    number: int


class Free(msgspec.Struct, tag=True):
    """The value in this slot was copied, or is not wanted."""

    slot: int
    generation: int


class Close(msgspec.Struct, tag=True):
    """End."""


class Opened(msgspec.Struct, tag=True):
    """The store is open and the ring is mapped."""


class Alive(msgspec.Struct, tag=True):
    """Said now and then, whatever the store does."""


class Failed(msgspec.Struct, tag=True):
    """It cannot begin."""

    message: str


class Fetched(msgspec.Struct, tag=True):
    """Where the value is; ``slot`` -1: a miss."""

    number: int
    slot: int = -1
    generation: int = 0


ToFetcher = Begin | Fetch | Cancel | Free | Close
FromFetcher = Opened | Alive | Failed | Fetched
