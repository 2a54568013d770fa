"""A block pool in plain Python: a list for the free queue, dictionaries for the rest. Slow and obvious on purpose.

Written from the description of the pool, not from its source: the real pool is held against it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable

NULL = 0


class PoolModel:
    """Blocks 1 .. num_blocks - 1; block 0 is the null block. A content is anything hashable."""

    def __init__(self, num_blocks: int, caching: bool = True) -> None:
        self.ids = range(1, num_blocks)
        self.caching = caching
        self.queue = list(self.ids)
        self.refs: Counter[int] = Counter()
        self.names: dict[int, Hashable] = {}
        self.marked: set[int] = set()

    def allocate(self, count: int) -> list[int]:
        taken, self.queue = self.queue[:count], self.queue[count:]
        for block in taken:
            self.refs[block] = 1
            self.names.pop(block, None)
            self.marked.discard(block)
        return taken

    def touch(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if block == NULL:
                continue
            if self.refs[block] == 0:
                self.queue.remove(block)
            self.refs[block] += 1

    def free(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if block == NULL:
                continue
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self._queue_up(block)

    def _queue_up(self, block: int) -> None:
        if block in self.names and block not in self.marked:
            self.queue.append(block)
        else:
            self.queue.insert(0, block)

    def may_free(self, blocks: Iterable[int]) -> bool:
        """Whether nobody's reference would be taken."""
        return all(count <= self.refs[block] for block, count in Counter(blocks).items() if block != NULL)

    def name(self, block: int, content: Hashable) -> None:
        if self.caching:
            self.names.setdefault(block, content)

    def forget(self, block: int) -> None:
        if self.names.pop(block, None) is not None:
            self._to_head(block)

    def evict_first(self, block: int) -> None:
        self.marked.add(block)
        self._to_head(block)

    def _to_head(self, block: int) -> None:
        if self.refs[block] == 0:
            self.queue.remove(block)
            self.queue.insert(0, block)

    def find(self, content: Hashable) -> int:
        """The lowest block with this content, 0 when there is none."""
        return min((block for block, name in self.names.items() if name == content), default=NULL)
