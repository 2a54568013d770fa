"""What an engine's process and its front say to each other (msgpack over a ``local_socket``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from headrace.contract.errors import BAD_INPUT, EngineDead, HeadraceError, StartRefused
from headrace.contract.request import Request
from headrace.contract.result import TokenDelta
from headrace.contract.stats import EngineStats

from .engine import Engine

POLL_MS = 200


class Submit(msgspec.Struct, tag=True):
    request: Request


class End(msgspec.Struct, tag=True):
    request_id: str
    reason: str


class Lost(msgspec.Struct, tag=True):
    """The giver of a request died after it had reported these tokens: it goes on here, or ends, if it is not here."""

    request: Request
    output_ids: tuple[int, ...]


class Poke(msgspec.Struct, tag=True):
    """Another rank of the group has work; or a front is still there."""


class Profile(msgspec.Struct, tag=True):
    """The front wants to know where this process spends its time."""

    number: int
    seconds: float


class Close(msgspec.Struct, tag=True):
    pass


class Greet(msgspec.Struct, tag=True):
    """A front has come to an engine that it did not start; to a child it never says so."""


class Ready(msgspec.Struct, tag=True):
    info: dict[str, Any]


class Failed(msgspec.Struct, tag=True):
    """``refused``: what was asked for is at fault."""

    message: str
    refused: bool = False

    @classmethod
    def of(cls, error: Exception) -> Failed:
        words = str(error) if isinstance(error, HeadraceError) else repr(error)
        return cls(words, isinstance(error, BAD_INPUT))

    def as_error(self, what: str = "") -> EngineDead:
        """``what``: words in front of the message."""
        return (StartRefused if self.refused else EngineDead)(f"{what}{self.message}")


class Deltas(msgspec.Struct, tag=True):
    deltas: list[TokenDelta]


class Stats(msgspec.Struct, tag=True):
    stats: EngineStats


class Profiled(msgspec.Struct, tag=True):
    """The answer: how often each stack was seen, or why there is none."""

    number: int
    stacks: dict[str, int]
    error: str | None = None


ToEngine = Submit | End | Lost | Poke | Profile | Close | Greet
ToFront = Ready | Failed | Deltas | Stats | Profiled
Builder = Callable[[Any], tuple[Engine, dict[str, Any]]]
"""Child side: from a picklable argument to an engine and facts for the front."""
