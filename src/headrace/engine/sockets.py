"""ZeroMQ sockets between engines and fronts: bound or connected, secured, bounded. Sends nothing and reads nothing."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from headrace.contract.errors import StoreError

from .hand_over_wire import HIGH_WATER

Secure = Callable[["zmq.Socket[bytes]"], None]


def connect_dealer(address: str, secure: Secure | None, *, keeps_name: bool = False) -> zmq.Socket[bytes]:
    """A socket that speaks to whoever listens on ``address``, now or later. ``keeps_name``: when it has to connect
    again the other side knows it again; else it is another one. Raises StoreError where there is none to be had."""
    socket = _prepared(zmq.DEALER, secure, HIGH_WATER, linger_ms=0)
    if keeps_name:
        socket.setsockopt(zmq.ROUTING_ID, b"headrace" + secrets.token_bytes(16))
    try:
        socket.connect(address)
    except zmq.ZMQError as error:
        socket.close()
        raise StoreError(address, f"cannot be connected to: {error}") from error
    return socket


def bind_router(
    address: str,
    secure: Secure | None,
    *,
    high_water: int = HIGH_WATER,
    linger_ms: int = 0,
    most_bytes: int = -1,
    keeps_names: bool = False,
) -> zmq.Socket[bytes]:
    """A socket that listens on ``address``. ``most_bytes``: of one frame; -1: no limit. ``keeps_names``: who
    connects again under its name takes its place, even where the broken connection still seems to stand.

    Raises StoreError where the address cannot be listened on.
    """
    socket = _prepared(zmq.ROUTER, secure, high_water, linger_ms)
    socket.maxmsgsize = most_bytes
    socket.setsockopt(zmq.ROUTER_HANDOVER, int(keeps_names))
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close()
        raise StoreError(address, f"cannot be listened on: {error}") from error
    return socket


def sent(socket: zmq.Socket[bytes], message: bytes) -> bool:
    """Sends without waiting. False where nobody takes it: a peer may go between a look (``poll``) and the sending."""
    try:
        socket.send(message, zmq.NOBLOCK)
    except zmq.Again:
        return False
    return True


class Line:
    """Watches whether a dealer's connection stands. What closes it is an end of the other process (or a reset on the
    way), not its silence; the socket itself connects again by itself, and says nothing of either.

    Ask it regularly as long as it is open, also while nobody answers: refused attempts are news too, and where too many
    lie unread, everything that the sockets of the context do stands still.
    """

    def __init__(self, dealer: zmq.Socket[bytes]) -> None:
        self._dealer = dealer
        self._events = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._cut = False

    def cut(self) -> bool:
        """It stood, and does not now."""
        while self._events.poll(0):
            self._cut = recv_monitor_message(self._events)["event"] == zmq.EVENT_DISCONNECTED
        return self._cut

    def close(self) -> None:
        """Before the dealer is closed; again does nothing."""
        if not self._events.closed:
            self._dealer.disable_monitor()
            self._events.close()


def _prepared(kind: int, secure: Secure | None, high_water: int, linger_ms: int) -> zmq.Socket[bytes]:
    context: zmq.Context[Any] = zmq.Context.instance()
    socket: zmq.Socket[bytes] = context.socket(kind)
    socket.set_hwm(high_water)
    socket.linger = linger_ms
    if secure is not None:
        secure(socket)
    return socket
