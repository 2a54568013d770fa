"""Fetches one file so that nothing is lost or wrong: resumes partial bytes, verifies, then names.

The partial file (``NAME.part``) survives crashes and kills; the next attempt asks for the rest only. A file
under its final name is whole and verified.
"""

from __future__ import annotations

import http.client
import ssl
import time
import urllib.error
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.contract.errors import PullError

from .files import CHUNK_BYTES, Checksum, disk_errors, publish, require_space, write_all
from .source import Progress
from .transport import Opened, Transport

ATTEMPTS = 5
MIN_BYTES_PER_S = 1024
PASSING = (408, 425, 429, 500, 502, 503, 504)
"""HTTP statuses that may be gone at the next attempt; any other error status is final."""

NetworkErrors = (
    urllib.error.URLError,
    http.client.HTTPException,
    TimeoutError,
    ConnectionError,
    ssl.SSLError,
)


@dataclass(frozen=True, slots=True)
class Remote:
    """A file somewhere else. ``size`` in bytes, if it is known beforehand."""

    url: str
    checksum: Checksum | None = None
    size: int | None = None


class Meter:
    """Adds the files of one pull up into one progress."""

    def __init__(self, progress: Progress | None, expected_bytes: int = 0) -> None:
        self._progress, self._expected = progress, expected_bytes
        self._finished = self._size = 0

    def file(self, size: int) -> None:
        """A file begins; the previous one counts as finished."""
        self._finished += self._size
        self._size = size

    def at(self, done: int) -> None:
        if self._progress:
            self._progress(self._finished + done, max(self._expected, self._finished + self._size))


@dataclass(frozen=True)
class Downloader:
    """Downloads over one transport. ``source`` is the model's name, for messages."""

    transport: Transport
    source: str
    meter: Meter
    pause: Callable[[float], None] = time.sleep

    def fetch(self, remote: Remote, target: Path) -> Path:
        """Brings ``remote`` to ``target``. Raises PullError; what has arrived stays for the next try."""
        if target.exists():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + ".part")
        failures = 0
        while failures < ATTEMPTS:
            before = _size(part)
            try:
                self._resume(remote, part)
            except NetworkErrors as error:
                self._give_up_on_final(remote, error)
                failures = failures + 1 if _size(part) - before < CHUNK_BYTES else 1
                if failures == ATTEMPTS:
                    raise PullError(self.source, f"{remote.url}: {_reason(error)}; pull again to resume") from error
                self.pause(0.1 * 2**failures)
            else:
                break
        publish(part, target, remote.checksum, self.source)
        return target

    def _give_up_on_final(self, remote: Remote, error: Exception) -> None:
        if isinstance(error, urllib.error.HTTPError) and error.code not in PASSING:
            hint = " (it wants credentials)" if error.code in (401, 403) else ""
            raise PullError(self.source, f"{remote.url}: HTTP {error.code} {error.reason}{hint}") from error

    def _resume(self, remote: Remote, part: Path) -> None:
        offset = _size(part)
        if remote.size is not None and offset > remote.size:
            part.unlink()
            offset = 0
        if offset and offset == remote.size:
            return
        try:
            opened = self.transport.open(remote.url, offset=offset)
        except urllib.error.HTTPError as error:
            if error.code != 416 or not offset:
                raise
            if error.headers.get("Content-Range") == f"bytes */{offset}":
                return  # every byte was there already
            part.unlink()
            opened = self.transport.open(remote.url)
        with opened.stream:
            self._append(remote, part, opened)

    def _append(self, remote: Remote, part: Path, opened: Opened) -> None:
        total = remote.size if opened.total is None else opened.total
        if remote.size is not None and total != remote.size:
            raise PullError(self.source, f"{remote.url}: {total} bytes offered, {remote.size} expected")
        offset = opened.offset if opened.offset == _size(part) else 0
        if opened.offset not in (0, offset):
            part.unlink()
            raise ConnectionError(f"the server began at byte {opened.offset}, not at the byte asked for")
        self.meter.file(total or 0)
        if total is not None:
            require_space(part, total - offset, self.source)
        with disk_errors(part, self.source), part.open("r+b" if offset else "wb", buffering=0) as file:
            file.seek(offset)
            file.truncate()
            done = self._copy(opened, file, offset)
        if total is not None and done != total:
            raise ConnectionError(f"the connection ended at byte {done} of {total}")

    def _copy(self, opened: Opened, file: object, done: int) -> int:
        """Copies until the stream ends. A server that only drips is given up like one that is silent."""
        read = getattr(opened.stream, "read1", opened.stream.read)
        window_start, window_bytes = time.monotonic(), 0
        while chunk := read(CHUNK_BYTES):
            write_all(file, chunk)  # type: ignore[arg-type]
            done += len(chunk)
            window_bytes += len(chunk)
            self.meter.at(done)
            waited = time.monotonic() - window_start
            if waited > self.transport.timeout_s:
                if window_bytes < MIN_BYTES_PER_S * waited:
                    raise TimeoutError(f"only {window_bytes} bytes in {waited:.0f} s")
                window_start, window_bytes = time.monotonic(), 0
        return done


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return f"{type(reason).__name__}: {reason}" if isinstance(reason, Exception) else str(reason)
