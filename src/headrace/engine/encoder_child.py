"""The encoder's own process: pictures in, their rows out, one by one; ends when told, or when the front is gone.

It is built by a function it is given, so it knows no model. It never retries and keeps nothing: that is the front's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from headrace.contract.errors import HeadraceError
from headrace.contract.picture import Picture

from .local_socket import folder_of, open_socket
from .messages import POLL_MS, Close, Failed, Ready
from .orphans import leave, leave_signals_to_the_front, remove_if_orphaned, watching

Encode = Callable[[Picture], bytes]
"""Float32 rows (kinds, hidden) of a picture, as bytes."""
EncoderBuilder = Callable[[Any], Encode]
"""Child side: from a picklable argument to what encodes."""


class Look(msgspec.Struct, tag=True):
    """A picture to encode; ``number``: which answer is its own."""

    number: int
    picture: Picture


class Seen(msgspec.Struct, tag=True):
    """Its rows, or why there are none."""

    number: int
    rows: bytes = b""
    error: str | None = None


ToEncoder = Look | Close
FromEncoder = Ready | Failed | Seen


def encoder_main(build: EncoderBuilder, argument: Any, address: str, parent: int) -> None:
    """Runs in the child until told to close or the parent is gone; then its folder goes, if nobody else removes it."""
    leave_signals_to_the_front()
    folders = [folder_of(address)]
    try:
        socket = open_socket(address, bind=False)
        try:
            with watching(folders, parent):
                encode = build(argument)
        except Exception as error:
            socket.send(msgspec.msgpack.encode(Failed.of(error)))
            return
        socket.send(msgspec.msgpack.encode(Ready({})))
        with watching(folders, parent):  # it does not look up while it computes
            _serve(encode, socket)
    finally:
        remove_if_orphaned(folders, parent)
    leave()


def _serve(encode: Encode, socket: zmq.Socket[bytes]) -> None:
    decoder = msgspec.msgpack.Decoder(ToEncoder)
    while True:
        if not socket.poll(POLL_MS):
            continue
        message = decoder.decode(socket.recv())
        if isinstance(message, Close):
            return
        socket.send(msgspec.msgpack.encode(_answer(encode, message)))


def _answer(encode: Encode, message: Look) -> Seen:
    """A picture that cannot be encoded costs its own request, not the process."""
    try:
        return Seen(message.number, encode(message.picture))
    except Exception as error:
        return Seen(message.number, error=_words(error))


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, HeadraceError) else repr(error)
