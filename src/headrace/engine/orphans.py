"""What a child does when its front is gone: while it still builds its engine it ends at once, and it takes along the
folders that nobody else is left to remove. Later its own loop sees to that."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

PERIOD_S = 0.5


def remove_if_orphaned(folders: Sequence[str], parent: int) -> None:
    """For the child, at its end: a parent that was killed cannot remove its folders any more."""
    if os.getppid() != parent:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def watching(folders: Sequence[str], parent: int) -> Iterator[None]:
    """Inside, the death of the parent ends this process: whatever is loaded or waited for would be for nobody."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(PERIOD_S):
            if os.getppid() != parent:
                remove_if_orphaned(folders, parent)
                os._exit(1)

    threading.Thread(target=watch, name="headrace-orphan", daemon=True).start()
    try:
        yield
    finally:
        over.set()
