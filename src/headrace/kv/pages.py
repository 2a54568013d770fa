"""Looks over the pages of an LMDB file before LMDB maps it: there a damaged page is no error but the process's end.

A power failure may leave an index whose newest root points at pages that were never written, or at nothing; LMDB takes
them as they are and ends by a signal, at every start. Walked here, by reading alone: the newest tree, its named
databases and the list of free pages. Nothing is mended: who finds damage builds the index anew. Belongs to whoever is
alone with the file. Format: LMDB's data version 1, as in its ``mdb.c``.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import lmdb

HEADER = struct.Struct("<QHHHH")  # of a page: its number, padding, flags, and where free space begins and ends
META = struct.Struct("<IIQQ")  # magic, version, address, size of the map; two databases follow, then LAST
DATABASE = struct.Struct("<IHHQQQQQ")  # padding, flags, depth; branch, leaf and overflow pages, entries, root
LAST = struct.Struct("<QQ")  # the last page's number, the transaction's
META_BYTES = META.size + 2 * DATABASE.size + LAST.size
NODE = struct.Struct("<HHHH")  # two halves of a length (of a branch: of a page number), flags, the key's length
NUMBER = struct.Struct("<Q")
MAGIC, DATA_VERSION = 0xBEEFC0DE, 1
BRANCH, LEAF, OVERFLOW, META_PAGE = 1, 2, 4, 8
BIG, SUB_DATABASE, DUPLICATES = 1, 2, 4  # flags of a node
INTEGER_KEYS, SORTED_DUPLICATES = 8, 4  # flags of a database
NOWHERE = 2**64 - 1  # the root of an empty database
MOST_DEPTH = 32

KeyOrder = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Database:
    """A database's record. ``pages``: how many branch, leaf and overflow pages it has."""

    flags: int
    depth: int
    pages: tuple[int, int, int]
    entries: int
    root: int


@dataclass(frozen=True, slots=True)
class Node:
    """``flags`` and ``data``: of a leaf's. ``child``: of a branch's, the page below; of a leaf's, 0."""

    key: bytes
    flags: int
    data: bytes
    length: int
    child: int


def check_pages(path: Path) -> None:
    """Raises lmdb.CorruptedError for a file that LMDB could not walk through; OSError. One that is missing, or holds
    nothing yet, is fine."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if os.fstat(fd).st_size:
            _Walk(fd).check()
    finally:
        os.close(fd)


def _database(data: bytes) -> Database:
    _, flags, depth, *pages, entries, root = DATABASE.unpack_from(data)
    return Database(flags, depth, (pages[0], pages[1], pages[2]), entries, root)


def _damaged(what: str, page: int) -> NoReturn:
    raise lmdb.CorruptedError(f"page {page}: {what}")


def _as_written(key: bytes) -> bytes:
    return key


def _as_number(key: bytes) -> bytes:
    return key[::-1]


class _Walk:
    """One walk over an open file; ``check`` once. Holds the numbers of its pages, never their content."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._seen: set[int] = {0, 1}
        self._found = [0, 0, 0, 0]  # branch, leaf and overflow pages and entries of the database that is walked
        self._page_bytes = self._last = 0
        self._free, self._main = self._newest()

    def _newest(self) -> tuple[Database, Database]:
        """The roots of the newest transaction, which of the first two pages has."""
        found: list[tuple[int, int, bytes]] = []
        at = 0
        for number in range(2):
            page = os.pread(self._fd, HEADER.size + META_BYTES, at)
            if len(page) < HEADER.size + META_BYTES:
                _damaged("is cut short", number)
            meta = page[HEADER.size :]
            magic, version, _, _ = META.unpack_from(meta)
            if (magic, version) != (MAGIC, DATA_VERSION) or not HEADER.unpack_from(page)[2] & META_PAGE:
                _damaged("does not say what it is", number)
            size = struct.unpack_from("<I", meta, META.size)[0]
            last, transaction = LAST.unpack_from(meta, META.size + 2 * DATABASE.size)
            found.append((transaction, last, meta))
            if size not in (1 << n for n in range(9, 17)) or at not in (0, size):
                _damaged("its pages have no size", number)
            at = self._page_bytes = size
        _, self._last, meta = max(found)
        return _database(meta[META.size :]), _database(meta[META.size + DATABASE.size :])

    def check(self) -> None:
        free = [page for node in self._tree(self._free, _as_number) for page in self._freed(node)]
        named = [node.data for node in self._tree(self._main, _as_written) if node.flags & SUB_DATABASE]
        for record in named:
            if any(node.flags & (SUB_DATABASE | DUPLICATES) for node in self._tree(_database(record), _as_written)):
                _damaged("a database within a database", self._last)
        if len(set(free)) != len(free) or not self._seen.isdisjoint(free):
            _damaged("a page is free and in use", self._last)
        if free and not 2 <= min(free) <= max(free) <= self._last:
            _damaged("a free page that cannot be", self._last)

    def _freed(self, node: Node) -> list[int]:
        """The pages that a transaction gave back: their count, then their numbers, falling."""
        if len(node.key) != NUMBER.size or len(node.data) < NUMBER.size:
            _damaged("no list of free pages", self._last)
        count = NUMBER.unpack_from(node.data)[0]
        if len(node.data) < NUMBER.size * (count + 1):
            _damaged("a list of free pages is cut short", self._last)
        pages = list(struct.unpack_from(f"<{count}Q", node.data, NUMBER.size))
        if any(left <= right for left, right in pairwise(pages)):
            _damaged("a list of free pages is out of order", self._last)
        return pages

    def _tree(self, database: Database, order: KeyOrder) -> Iterator[Node]:
        """The leaf nodes of a database, in order; what it says of itself must be so."""
        if database.flags & SORTED_DUPLICATES or database.depth > MOST_DEPTH:
            _damaged("a database of another kind", self._last)
        self._found = [0, 0, 0, 0]
        if database.root != NOWHERE:
            yield from self._below(database.root, database.depth, b"", None, order)
        if (*database.pages, database.entries) != tuple(self._found):
            _damaged("a database says it has other pages than it has", self._last)

    def _below(self, number: int, depth: int, least: bytes, end: bytes | None, order: KeyOrder) -> Iterator[Node]:
        """The leaf nodes under a page with ``depth`` levels, whose keys lie between these bounds."""
        kind = LEAF if depth == 1 else BRANCH
        nodes = self._nodes(number, kind)
        self._found[kind - 1] += 1
        keys = [order(node.key) for node in nodes]
        if kind == BRANCH:  # its first key is not used, and stands for the least
            keys[0] = least
        bounds = [*keys, *([] if end is None else [end])]
        if any(a >= b for a, b in pairwise(bounds)) or keys[0] < least:
            _damaged("its keys are out of order", number)
        if kind == LEAF:
            self._found[3] += len(nodes)
            yield from map(self._whole, nodes)
            return
        for node, low, high in zip(nodes, keys, [*keys[1:], end]):
            yield from self._below(node.child, depth - 1, low, high, order)

    def _page(self, number: int, kind: int, count: int = 1) -> bytes:
        """A page, or several in a row, that nothing else has pointed at."""
        numbers = range(number, number + count)
        if not 2 <= number <= number + count - 1 <= self._last:
            _damaged("cannot be", number)
        page = os.pread(self._fd, count * self._page_bytes, number * self._page_bytes)
        if len(page) != count * self._page_bytes:
            _damaged("lies where the file does not reach", number)
        its_number, _, flags, _, _ = HEADER.unpack_from(page)
        if its_number != number or flags & 0x7F != kind:
            _damaged("is another one", number)
        if not self._seen.isdisjoint(numbers):
            _damaged("is in two places", number)
        self._seen.update(numbers)
        return page

    def _nodes(self, number: int, kind: int) -> list[Node]:
        page = self._page(number, kind)
        _, _, _, lower, upper = HEADER.unpack_from(page)
        count = (lower - HEADER.size) // 2
        if not HEADER.size < lower <= upper <= self._page_bytes or lower % 2 or count < (2 if kind == BRANCH else 1):
            _damaged("its bounds cannot be", number)
        nodes, spans = [], []
        for at in struct.unpack_from(f"<{count}H", page, HEADER.size):
            if not upper <= at <= self._page_bytes - NODE.size or at % 2:
                _damaged("a node lies outside it", number)
            node, end = _node(page, at, kind)
            if end > self._page_bytes:
                _damaged("a node reaches out of it", number)
            nodes.append(node)
            spans.append((at, end))
        spans.sort()
        if any(end > start for (_, end), (start, _) in pairwise(spans)):
            _damaged("its nodes overlap", number)
        return nodes

    def _whole(self, node: Node) -> Node:
        """With its data, where they lie on pages of their own."""
        if not node.flags & BIG:
            if node.flags & SUB_DATABASE and node.length != DATABASE.size:
                _damaged("a database's record has another length", self._last)
            return node
        first = NUMBER.unpack(node.data)[0]
        count = -(-(HEADER.size + node.length) // self._page_bytes)
        pages = self._page(first, OVERFLOW, count)
        if struct.unpack_from("<I", pages, HEADER.size - 4)[0] != count:
            _damaged("has another length", first)
        self._found[2] += count
        return Node(node.key, node.flags, pages[HEADER.size : HEADER.size + node.length], node.length, 0)


def _node(page: bytes, at: int, kind: int) -> tuple[Node, int]:
    """A node and where it ends; that may be behind the page."""
    low, high, flags, key_bytes = NODE.unpack_from(page, at)
    body = at + NODE.size
    key = page[body : body + key_bytes]
    if kind == BRANCH:
        return Node(key, 0, b"", 0, low | high << 16 | flags << 32), body + key_bytes
    length = low | high << 16
    here = NUMBER.size if flags & BIG else length
    end = body + key_bytes + here
    return Node(key, flags, page[body + key_bytes : end], length, 0), end
