"""What the two ends of a hand-off between processes say to each other: msgpack headers, KV as frames behind them.

A giver holds a slot of the taker's for each sequence of which anything was sent; the taker says how many there are, and
gives a slot back when it has taken the sequence or dropped it. So neither side ever holds more than was granted. What a
broken connection has swallowed comes out at the next Hello.
"""

from __future__ import annotations

import math

import msgspec

from headrace.contract.handoff import Part
from headrace.contract.request import Request

HELLO_S = 1.0  # a giver speaks at least this often, and is answered
SILENCE_S = 10.0  # after which the other side counts as gone
POLL_MS = 200
HIGH_WATER = 1000
MOST_FRAME_BYTES = 1 << 30
MOST_BLOCKS = 1 << 20  # of one sequence


class Hello(msgspec.Struct, tag=True):
    """A giver is there. ``offers`` and ``drops``: whose were sent and not answered yet, so that it comes out what a
    connection that broke has swallowed. ``number`` counts them; the answer has it too."""

    number: int = 0
    offers: list[str] = []
    drops: list[str] = []


class Piece(msgspec.Struct, tag=True):
    """Blocks (group, position) of a prompt under way; row i of each part is the block at ``places[i]``."""

    epoch: int
    request_id: str
    places: list[tuple[int, int]]
    parts: list[Part]
    error: str | None = None


class Offer(msgspec.Struct, tag=True):
    """A HandedOver; its frames hold the blocks that did not go ahead. ``left_s``: until its deadline."""

    epoch: int
    request: Request
    output_ids: tuple[int, ...]
    num_cached_tokens: int
    blocks: list[list[int]]
    sent: list[int]
    left_s: float
    parts: list[Part]
    error: str | None = None


class Drop(msgspec.Struct, tag=True):
    """What went ahead of a request is for nothing. Answered by Freed, whatever is known of it."""

    request_id: str


class Welcome(msgspec.Struct, tag=True):
    """To each Hello. ``epoch``: another one means another taker, which has nothing of what was sent before.
    ``missing``: the offers of that Hello that never came."""

    epoch: int
    capacity: int
    recalls: bool = False  # whether it takes sequences whose KV it finds in the common store
    still_s: float = math.inf  # since it last got on with what it has
    number: int = 0
    missing: list[str] = []


class Freed(msgspec.Struct, tag=True):
    """Slots that are free again."""

    request_ids: list[str]


ToTaker = Hello | Piece | Offer | Drop
ToGiver = Welcome | Freed
