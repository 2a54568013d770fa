"""A trace of arrivals: when requests came, how long their prompts were and how much was generated. No texts.

Reads CSV with the columns TIMESTAMP, ContextTokens and GeneratedTokens, as the public Azure traces of language-model
inference have them. Reads, scales, and knows nothing of engines.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path

from headrace.contract.errors import ConfigError

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOST_TOKENS = 1 << 24


@dataclass(frozen=True, slots=True)
class Arrival:
    """``at_s``: seconds since the first arrival. Lengths in tokens, at least 1."""

    at_s: float
    prompt: int
    output: int


def read_trace(path: Path, count: int, skip: int = 0) -> list[Arrival]:
    """``count`` arrivals after the first ``skip``. Raises ConfigError naming file and line."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(islice(_rows(path, file), skip, skip + count))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("trace", f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if not rows:
        raise ConfigError("trace", f"{path}: holds no arrival after the first {skip}")
    start = rows[0][0]
    return [Arrival((when - start).total_seconds(), prompt, output) for when, prompt, output in rows]


def _rows(path: Path, file: Iterator[str]) -> Iterator[tuple[datetime, int, int]]:
    reader = csv.DictReader(file)
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise ConfigError("trace", f"{path}:1: lacks the columns {', '.join(missing)}")
    before: datetime | None = None
    for row in reader:
        try:
            # Seven digits of a second are more than datetime takes.
            when = datetime.fromisoformat(row["TIMESTAMP"].strip()[:26])
            lengths = [int(row[name]) for name in COLUMNS[1:]]
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError("trace", f"{path}:{reader.line_num}: {error}") from error
        if (before is not None and when < before) or not all(0 <= n <= MOST_TOKENS for n in lengths):
            raise ConfigError("trace", f"{path}:{reader.line_num}: goes back in time, or has a length beyond reason")
        before = when
        yield when, max(1, lengths[0]), max(1, lengths[1])


def scaled(arrivals: Sequence[Arrival], time: float, length: float, longest: int) -> list[Arrival]:
    """Gaps times ``time``, lengths times ``length``, no sequence longer than ``longest`` tokens (prompts give way)."""
    out = []
    for arrival in arrivals:
        output = min(max(1, round(arrival.output * length)), longest - 1)
        prompt = min(max(1, round(arrival.prompt * length)), longest - output)
        out.append(Arrival(arrival.at_s * time, prompt, output))
    return out
