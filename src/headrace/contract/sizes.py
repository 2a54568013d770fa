"""Sizes as people write them, and how many threads are too many. Knows no setting and no memory."""

from __future__ import annotations

import re

from .errors import ConfigError

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
MOST_BYTES = 1 << 62
MAX_THREADS = 1024  # what the kernels' pool takes
POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_size(field: str, text: str) -> int:
    """Bytes of ``2GiB``, ``512M`` or ``1000``; units are powers of 1024. Raises ConfigError."""
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(field, f"must be a size such as 512MiB or 2G, got {text!r}")
    size = float(match[1]) * 1024 ** POWERS[match[2].upper()]
    if size > MOST_BYTES:
        raise ConfigError(field, f"is beyond any memory: {text[:40]!r}")
    return int(size)
