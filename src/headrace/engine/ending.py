"""Several things that must all be done at an engine's end, whatever becomes of one of them. Knows none of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

log = logging.getLogger(__name__)


def attempt(part: Callable[[], Any]) -> None:
    """What it raises is logged: it must not keep anybody from being told."""
    try:
        part()
    except Exception:
        log.exception("ending the engine's requests")


def close_each(*parts: Callable[[], Any]) -> None:
    """Calls all, in this order. What one raises is raised when all were called."""
    with ExitStack() as rest:
        for part in reversed(parts):
            rest.callback(part)
