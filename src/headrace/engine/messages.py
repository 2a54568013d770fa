"""What an engine's process and its front say to each other (ZeroMQ pair, msgpack), and the socket they say it over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from headrace.contract.request import Request
from headrace.contract.result import TokenDelta
from headrace.contract.stats import EngineStats

from .engine import Engine

POLL_MS = 200
MAX_BACKLOG = 100_000  # messages a side may be behind before it counts as stuck


class Submit(msgspec.Struct, tag=True):
    request: Request


class End(msgspec.Struct, tag=True):
    request_id: str
    reason: str


class Close(msgspec.Struct, tag=True):
    pass


class Ready(msgspec.Struct, tag=True):
    info: dict[str, Any]


class Failed(msgspec.Struct, tag=True):
    message: str


class Deltas(msgspec.Struct, tag=True):
    deltas: list[TokenDelta]


class Stats(msgspec.Struct, tag=True):
    stats: EngineStats


ToEngine = Submit | End | Close
ToFront = Ready | Failed | Deltas | Stats
Builder = Callable[[Any], tuple[Engine, dict[str, Any]]]
"""Child side: from a picklable argument to an engine and facts for the front."""


def open_socket(address: str, *, bind: bool) -> zmq.Socket[bytes]:
    context: zmq.Context[Any] = zmq.Context.instance()
    socket: zmq.Socket[bytes] = context.socket(zmq.PAIR)
    socket.set_hwm(MAX_BACKLOG)
    socket.linger = 1000
    (socket.bind if bind else socket.connect)(address)
    return socket
