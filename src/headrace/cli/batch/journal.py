"""The output file: one record per line, written as requests finish, and the memory of what is done.

Invariant: up to the last line feed the file holds whole records, whatever kills the process; what follows is
half a record and is cut off on opening. One run at a time holds the file (a lock that dies with its process).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from headrace.contract.errors import ConfigError, HeadraceError

from .wishes import LineId

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
RECORD_START = b'{"id":'
SCAN_BYTES = 1 << 20


class OutputError(HeadraceError):
    """The output cannot be written. What is in the file is whole; the same command resumes."""


class _Head(msgspec.Struct):
    """The part of a record that says which input line it answers."""

    id: str | int | None
    line: int


class Done:
    """Which input lines have a record: by id where one was given, else by line number.

    About 70 bytes per id, one bit per line without.
    """

    def __init__(self) -> None:
        self._ids: set[int] = set()
        self._lines = bytearray()

    def add(self, line: int, given: LineId) -> None:
        if given is not None:
            self._ids.add(_digest(given))
            return
        byte = line >> 3
        if byte >= len(self._lines):
            self._lines.extend(bytes(max(byte + 1 - len(self._lines), len(self._lines))))
        self._lines[byte] |= 1 << (line & 7)

    def has(self, line: int, given: LineId) -> bool:
        if given is not None:
            return _digest(given) in self._ids
        byte = line >> 3
        return byte < len(self._lines) and bool(self._lines[byte] >> (line & 7) & 1)


class Journal:
    """An open, locked, repaired output file. ``num_found`` records were in it, ``num_cut_bytes`` were cut off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done = Done()
        self.num_found = self.num_cut_bytes = 0
        self._file = _open_locked(path)
        try:
            self._size = self._scan()
            self._cut_tail()
        except BaseException:
            os.close(self._file)
            raise

    def write(self, line: int, given: LineId, fields: dict[str, Any]) -> None:
        """Appends one record and hands it to the system at once. Raises OutputError; the file stays whole."""
        data = msgspec.json.encode({"id": given, "line": line, **fields}) + b"\n"
        try:
            _write_all(self._file, data)
        except OSError as error:
            os.ftruncate(self._file, self._size)
            raise _output_error(self.path, error) from error
        self._size += len(data)
        self.done.add(line, given)

    def close(self) -> None:
        """Brings everything to the disk and lets go of the lock."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise _output_error(self.path, error) from error
        finally:
            os.close(self._file)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _scan(self) -> int:
        """Takes in the records that are there; the size of the part that is whole."""
        decoder = msgspec.json.Decoder(_Head)
        size = 0
        for record in _whole_lines(self._file):
            try:
                head = decoder.decode(record)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ConfigError(
                    "output", f"{self.path}: line {self.num_found + 1} is not a record: {error}. Choose another file"
                ) from error
            self.done.add(head.line, head.id)
            self.num_found += 1
            size += len(record)
        return size

    def _cut_tail(self) -> None:
        """Removes what a killed run left behind, and nothing that looks like somebody's own text."""
        self.num_cut_bytes = os.fstat(self._file).st_size - self._size
        head = os.pread(self._file, len(RECORD_START), self._size)
        if not RECORD_START.startswith(head) and head.strip(b"\0"):
            raise ConfigError("output", f"{self.path} ends in something that is not a record. Choose another file")
        os.ftruncate(self._file, self._size)
        os.lseek(self._file, 0, os.SEEK_END)


def _open_locked(path: Path) -> int:
    """Raises ConfigError for something that is not a file of ours to write, OutputError when it is in use."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise ConfigError("output", f"{path}: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ConfigError("output", f"{path} is not a regular file, so a run could not be resumed")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise OutputError(f"output: another run is writing {path}; wait for it or choose another file") from None
    except BaseException:
        os.close(file)
        raise
    return file


def _whole_lines(file: int) -> Iterator[bytes]:
    """Lines that end in a line feed, with it."""
    rest = b""
    while piece := os.read(file, SCAN_BYTES):
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line + b"\n" for line in whole)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _output_error(path: Path, error: OSError) -> OutputError:
    if error.errno in NO_SPACE:
        return OutputError(
            f"output: no space left to write {path} ({error.strerror}). What is in it is whole: "
            "free some space and run the same command again to resume"
        )
    return OutputError(f"output: {path}: {error.strerror}. Run the same command again to resume")


def _digest(given: LineId) -> int:
    """64 bits of an id, so that ids of any length take the same memory; ``7`` and ``"7"`` differ."""
    return int.from_bytes(hashlib.blake2b(repr(given).encode("utf-8", "replace"), digest_size=8).digest(), "little")
