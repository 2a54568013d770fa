"""A lock against two refreshes at once, on one machine or on several that share a folder.

The lock is a file that says who holds it and until when; it comes into being by ``link``, which is atomic on shared
file systems too, and never by locking a file, which is not. Whoever removes a lock, its owner included, must first
hold the *claim* on exactly that lock (its token), so nobody ever removes a successor's.

    create   a private file is written, then linked to the lock's name: the name exists whole or not at all
    expiry   a holder that died stops nobody for longer than its time; clocks may differ by SKEW_S
    publish  the holder checks that the lock is still its own before it writes what the lock protects
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from headrace.contract.errors import ConfigError
from headrace.contract.files import read_small

SKEW_S = 60.0
LIFETIME_S = 1800.0
MAX_BYTES = 4096


class Holder(msgspec.Struct, frozen=True):
    """Who: ``host`` and ``pid`` are for people, ``token`` for the lock itself. Times in seconds since 1970."""

    host: str
    pid: int
    token: str
    since: float
    expires: float


class Lock:
    """``path`` need not exist. ``wall``: this node's clock."""

    def __init__(self, path: Path, lifetime_s: float = LIFETIME_S, wall: Callable[[], float] = time.time) -> None:
        self._path = path
        self._wall = wall
        now = wall()
        self._me = Holder(socket.gethostname(), os.getpid(), secrets.token_hex(8), now, now + lifetime_s)

    @contextmanager
    def held(self) -> Iterator[Lock]:
        """Never waits. Raises ConfigError naming the holder, or the folder where no lock can be."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._take()
        except OSError as error:
            raise ConfigError("folder", f"{self._path.parent}: {error.strerror or error}") from error
        try:
            yield self
        finally:
            self._remove(self._me)

    def require(self) -> None:
        """Before publishing. Raises ConfigError when the time ran out or somebody else took over."""
        if self._holder() != self._me or self._wall() >= self._me.expires:
            raise ConfigError("lock", f"{self._path}: the refresh took longer than its lock lasts; nothing was written")

    def _take(self) -> None:
        if self._create(self._path):
            return
        holder = self._holder()
        if holder is not None and self._wall() > holder.expires + SKEW_S and self._remove(holder):
            holder = None
        if holder is None and self._create(self._path):  # gone meanwhile, or taken over
            return
        raise ConfigError("lock", self._refusal(self._holder()))

    def _create(self, path: Path) -> bool:
        mine = self._path.with_name(f"{self._path.name}.{self._me.token}")
        try:
            mine.write_bytes(msgspec.json.encode(self._me))
            os.link(mine, path)
        except FileExistsError:
            return False
        finally:
            mine.unlink(missing_ok=True)
        return True

    def _remove(self, holder: Holder) -> bool:
        """Removes the lock if it is ``holder``'s. False when it is not, or somebody else is at it."""
        claim = self._path.with_name(f"{self._path.name}.claim-{holder.token}")
        if not self._create(claim):
            return False
        try:
            if self._holder() != holder:
                return False
            self._path.unlink()
        finally:
            claim.unlink(missing_ok=True)
        return True

    def _holder(self) -> Holder | None:
        """None when there is no lock. Raises ConfigError when something else is there."""
        try:
            return msgspec.json.decode(read_small(self._path, MAX_BYTES), type=Holder)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(
                "lock", f"{self._path} is no lock of ours ({error}); look at it, then remove it"
            ) from error

    def _refusal(self, holder: Holder | None) -> str:
        if holder is None:
            return f"{self._path}: another refresh was faster; try again"
        until = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(holder.expires))
        return f"{self._path}: process {holder.pid} on {holder.host} is refreshing this, until {until} at the latest"
