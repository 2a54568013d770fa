"""What a benchmark is at, for whoever waits for it: log lines, which the command line shows on stderr.

Said before each piece of work, never inside one that is timed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)


def now(what: str) -> None:
    """``what`` begins."""
    log.info("%s", what)


class _Teller(logging.Handler):
    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(f"... {record.getMessage()}")


@contextmanager
def told(tell: Callable[[str], None]) -> Iterator[None]:
    """Within the ``with``, every ``now`` is told."""
    teller, level = _Teller(tell), log.level
    log.addHandler(teller)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(level)
        log.removeHandler(teller)
