"""A trace of arrivals: when requests came, how long their prompts were and how much was generated. No texts.

Reads CSV with the columns TIMESTAMP, ContextTokens and GeneratedTokens, as the public Azure traces of language-model
inference have them. Reads, scales, and knows nothing of engines.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
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
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets put a byte order mark before it
            rows = list(islice(_rows(path, file), skip, skip + count))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("trace", f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if not rows:
        raise ConfigError("trace", f"{path}: holds no arrival{f' after the first {skip}' if skip else ''}")
    start = rows[0][0]
    return [Arrival((when - start).total_seconds(), prompt, output) for when, prompt, output in rows]


def _rows(path: Path, file: Iterator[str]) -> Iterator[tuple[datetime, int, int]]:
    reader = csv.DictReader(file)
    before: datetime | None = None
    try:
        _check_head(reader.fieldnames or ())
        for row in reader:
            when, prompt, output = _when(row), *(_length(row, name) for name in COLUMNS[1:])
            if before is not None and when < before:
                raise ValueError(f"TIMESTAMP goes back in time: {when} after {before}")
            before = when
            yield when, max(1, prompt), max(1, output)
    except (ValueError, csv.Error) as error:
        raise ConfigError("trace", f"{path}:{max(1, reader.line_num)}: {error}") from error


def _check_head(names: Sequence[str]) -> None:
    missing = [name for name in COLUMNS if name not in names]
    if not names:
        raise ValueError(f"is empty; the first line names the columns {', '.join(COLUMNS)}")
    if missing:
        other = next((mark for mark in (";", "\t") if mark in names[0]), None)
        reason = f": columns are separated by commas, not by {other!r}" if other else ""
        raise ValueError(f"lacks the columns {', '.join(missing)}{reason}")


def _value(row: Mapping[str, str | None], name: str) -> str:
    value = row[name]
    if value is None or not value.strip():
        raise ValueError(f"{name} is missing")
    return value.strip()


def _when(row: Mapping[str, str | None]) -> datetime:
    """Digits beyond microseconds are dropped. A stamp without an offset is UTC: only differences count."""
    text = _value(row, "TIMESTAMP")
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"TIMESTAMP is no date and time: {text[:40]!r}") from None
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when


def _length(row: Mapping[str, str | None], name: str) -> int:
    text = _value(row, name)
    if not (text.isascii() and text.isdecimal()) or len(text) > 12 or int(text) > MOST_TOKENS:
        raise ValueError(f"{name} must be a whole number from 0 to {MOST_TOKENS}, got {text[:40]!r}")
    return int(text)


def scaled(arrivals: Sequence[Arrival], time: float, length: float, longest: int) -> list[Arrival]:
    """Gaps times ``time``, lengths times ``length``, no sequence longer than ``longest`` tokens (prompts give way)."""
    out = []
    for arrival in arrivals:
        output = min(max(1, round(arrival.output * length)), longest - 1)
        prompt = min(max(1, round(arrival.prompt * length)), longest - output)
        out.append(Arrival(arrival.at_s * time, prompt, output))
    return out
