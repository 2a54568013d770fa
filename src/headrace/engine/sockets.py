"""ZeroMQ sockets between engines and fronts: bound or connected, secured, bounded. Sends nothing and reads nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zmq

from headrace.contract.errors import StoreError

from .hand_over_wire import HIGH_WATER

Secure = Callable[["zmq.Socket[bytes]"], None]


def connect_dealer(address: str, secure: Secure | None) -> zmq.Socket[bytes]:
    """A socket that speaks to whoever listens on ``address``, now or later."""
    socket = _prepared(zmq.DEALER, secure, HIGH_WATER, linger_ms=0)
    socket.connect(address)
    return socket


def bind_router(
    address: str, secure: Secure | None, *, high_water: int = HIGH_WATER, linger_ms: int = 0, most_bytes: int = -1
) -> zmq.Socket[bytes]:
    """A socket that listens on ``address``. ``most_bytes``: of one frame; -1: no limit.

    Raises StoreError where the address cannot be listened on.
    """
    socket = _prepared(zmq.ROUTER, secure, high_water, linger_ms)
    socket.maxmsgsize = most_bytes
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close()
        raise StoreError(address, f"cannot be listened on: {error}") from error
    return socket


def _prepared(kind: int, secure: Secure | None, high_water: int, linger_ms: int) -> zmq.Socket[bytes]:
    context: zmq.Context[Any] = zmq.Context.instance()
    socket: zmq.Socket[bytes] = context.socket(kind)
    socket.set_hwm(high_water)
    socket.linger = linger_ms
    if secure is not None:
        secure(socket)
    return socket
