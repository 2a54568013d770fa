"""Forks: choices of one prompt. The first is prefilled; the others share its blocks and draw first tokens of their own.

Only in engines that plan prompts apart. A choice waits here until its sibling's prompt is computed. It computes the
prompt's last row again, in a block of its own, so its tokens are those it would have drawn alone. When the moment was
missed (the sibling ended, or ran on) it becomes a request like any other.

Until a fork is admitted it holds the sibling's last block, which that one goes on writing. Where it writes over what a
fork has yet to read there are none: choices wait all the same, and then find the prompt's whole blocks in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from headrace._core import Scheduler
from headrace.contract.ports import StepObserver

from .admission import sequence_fields
from .book import Book, Entry


class Forks:
    """Used by the loop's thread. ``add`` lets a request in the usual way."""

    def __init__(
        self, core: Scheduler, book: Book, observer: StepObserver | None, shares_open_blocks: bool = True
    ) -> None:
        """``shares_open_blocks``: nothing is written over in a block before it is full (``RecordLayout.rewrites``)."""
        self._core = core
        self._book = book
        self._observer = observer
        self._shares = shares_open_blocks
        self._waiting: dict[int, tuple[Entry, Entry]] = {}

    def hold(self, entry: Entry) -> bool:
        """Whether it waits for its sibling; else it is to be added."""
        parent = self._book.of_request(entry.request.shares) if entry.request.shares else None
        if parent is None or parent.num_reported > 0 or not _alike(parent, entry):
            return False
        self._waiting[entry.seq_id] = parent, entry
        return True

    def turn(self, add: Callable[[Entry], None]) -> None:
        """Forks whose sibling has just been prefilled; adds those that have waited for nothing."""
        for seq_id, (parent, entry) in list(self._waiting.items()):
            seen: Any = None if self._book.of_seq(parent.seq_id) is None else self._core.inspect(parent.seq_id)
            length = len(entry.request.prompt_token_ids)
            if seen is not None and seen["num_tokens"] == length:
                continue  # its prompt is not computed yet
            del self._waiting[seq_id]
            if seen is None or not self._fork(parent, entry):
                add(entry)

    def _fork(self, parent: Entry, entry: Entry) -> bool:
        if not self._shares:
            return False
        prompt = entry.request.prompt_token_ids
        try:
            self._core.fork(parent.seq_id, entry.seq_id, np.asarray(prompt, dtype=np.int32), [])
        except ValueError:  # it ran on, or was preempted
            return False
        if self._observer:
            self._observer.forked(parent.seq_id, entry.seq_id, prompt, [])
        return True

    def cancel(self, entry: Entry) -> bool:
        """Forgets a request; False when it was not waiting here."""
        return self._waiting.pop(entry.seq_id, None) is not None


def _alike(parent: Entry, entry: Entry) -> bool:
    """Same prompt and limits, which a fork inherits. Prompt logprobs need every row computed."""
    ours, theirs = (sequence_fields(one.request) | {"arrival": 0.0} for one in (entry, parent))
    return ours == theirs and bool(ours["reads_cache"])
