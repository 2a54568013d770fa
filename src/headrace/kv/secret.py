"""A shared secret as keys of a CURVE connection: whoever knows it can speak to the server, nobody else can listen.

Server and clients derive their key pairs from the secret, each under its own label; the server lets in the clients' key
alone. The secret itself is never sent.
"""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
from pathlib import Path
from typing import Any

import zmq
from zmq.utils import z85

from headrace.contract.errors import ConfigError

log = logging.getLogger("headrace.kv")

LEAST_BYTES = 16
TURNED_AWAY = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
ZAP = "inproc://zeromq.zap.01"


def read_secret(path: Path) -> bytes:
    """The secret in a file, without white space around it. Raises ConfigError when it is short or open to others."""
    try:
        mode, secret = path.stat().st_mode, path.read_bytes().strip()
    except OSError as error:
        raise ConfigError("secret", f"{path}: {error.strerror}") from error
    if mode & 0o077:
        raise ConfigError("secret", f"{path} can be read by others: chmod 600 it")
    if len(secret) < LEAST_BYTES:
        raise ConfigError("secret", f"{path} holds {len(secret)} bytes; at least {LEAST_BYTES} are needed")
    return secret


def key_pair(secret: bytes, side: str) -> tuple[bytes, bytes]:
    """Public and secret key of ``server`` or ``client``, in Z85."""
    seed = hashlib.sha256(f"headrace.kv {side}/1\0".encode() + secret).digest()
    private = z85.encode(seed)
    return zmq.curve_public(private), private


def secure_server(socket: zmq.Socket[bytes], secret: bytes) -> None:
    """Makes a socket that is about to bind speak only to those who know the secret."""
    socket.curve_server = True
    socket.curve_publickey, socket.curve_secretkey = key_pair(secret, "server")
    socket.zap_domain = b"headrace.kv"


def secure_client(socket: zmq.Socket[bytes], secret: bytes) -> None:
    socket.curve_serverkey = key_pair(secret, "server")[0]
    socket.curve_publickey, socket.curve_secretkey = key_pair(secret, "client")


class Doorman:
    """Answers the library's question whether a client may come in (ZAP, ZeroMQ RFC 27). One per context."""

    def __init__(self, context: zmq.Context[Any], secret: bytes) -> None:
        self._allowed = z85.decode(key_pair(secret, "client")[0])
        self._socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(ZAP)
        self._closing = threading.Event()
        self._context, self._watched = context, queue.SimpleQueue[str]()
        self._told = False
        self._thread = threading.Thread(target=self._run, name="headrace-kv-door", daemon=True)
        self._thread.start()

    def watch(self, socket: zmq.Socket[bytes]) -> None:
        """Says once when a client of this socket is turned away: nobody else could tell its user's mistake."""
        door = f"inproc://headrace.door.{id(socket)}"
        socket.monitor(door, TURNED_AWAY)
        self._watched.put(door)

    def _run(self) -> None:
        poller, monitors = zmq.Poller(), list[zmq.Socket[bytes]]()
        poller.register(self._socket, zmq.POLLIN)
        while not self._closing.is_set():
            while not self._watched.empty():
                monitors.append(self._context.socket(zmq.PAIR))
                monitors[-1].linger = 0
                monitors[-1].connect(self._watched.get())
                poller.register(monitors[-1], zmq.POLLIN)
            for socket, _ in poller.poll(100):
                if socket is self._socket:
                    self._answer(self._socket.recv_multipart())
                else:
                    self._turned_away(socket.recv_multipart()[-1])
        for socket in (self._socket, *monitors):
            socket.close()

    def _turned_away(self, where: bytes) -> None:
        if not self._told:
            self._told = True
            words = "a client of %s was turned away: its secret is another one, or it has none. Told once"
            log.warning(words, where.decode(errors="replace"))

    def _answer(self, frames: list[bytes]) -> None:
        version, number, mechanism = frames[0], frames[1], frames[5]
        welcome = mechanism == b"CURVE" and frames[6] == self._allowed
        if not welcome:
            self._turned_away(frames[3])
        code, words = (b"200", b"OK") if welcome else (b"400", b"not the secret")
        self._socket.send_multipart([version, number, code, words, b"", b""])

    def close(self) -> None:
        self._closing.set()
        self._thread.join(5)
