"""What is sent and when: drawn requests at drawn times or one after the other, or those of a recorded trace.

Drawn times are those of `vllm bench serve`: gaps of a gamma distribution, the first before the first request, all of
them scaled so that the last request goes out after exactly count / rate seconds. All of it depends on the seed alone.
Prompts are token ids; those of a trace share beginnings where the trace says so.
"""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

from headrace.contract.errors import ConfigError

BLOCK = 512  # tokens that one hash of a trace stands for
MAX_TRACE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Shot:
    """One request. ``at_s``: seconds after the start; None: when a place is free."""

    at_s: float | None
    prompt: list[int]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Synthetic:
    """``count`` requests. ``rate``: a second; None: as places become free. ``burstiness``: shape of the gaps'
    distribution; 1: a Poisson process, less: in bursts, more: evenly, infinite: every 1 / rate seconds."""

    count: int
    length: int
    max_tokens: int
    rate: float | None = None
    max_id: int = 40_000
    seed: int = 0
    burstiness: float = 1.0

    def shots(self) -> list[Shot]:
        drawn = random.Random(f"headrace load {self.seed}")
        prompts = [_ids(drawn, self.length, self.max_id) for _ in range(self.count)]
        times = [None] * self.count if self.rate is None else self._times(self.rate)
        return [Shot(at_s, prompt, self.max_tokens) for at_s, prompt in zip(times, prompts)]

    def _times(self, rate: float) -> list[float]:
        """Seconds after the start, rising; the last is ``count / rate``."""
        if math.isinf(self.burstiness):
            return [number / rate for number in range(1, self.count + 1)]
        drawn = random.Random(f"headrace times {self.seed}")
        times = list(accumulate(drawn.gammavariate(self.burstiness, 1.0) for _ in range(self.count)))
        return [at * (self.count / rate / times[-1]) for at in times] if times[-1] else [self.count / rate] * self.count


@dataclass(frozen=True, slots=True)
class Trace:
    """``path``: JSON lines (timestamp in ms, input_length, output_length, perhaps hash_ids) or CSV (TIMESTAMP,
    ContextTokens, GeneratedTokens). ``speed`` 2 sends twice as fast. Longer prompts and answers are cut to the most."""

    path: Path
    count: int
    speed: float = 1.0
    max_length: int = 4096
    most_tokens: int = 256
    max_id: int = 40_000
    seed: int = 0

    def shots(self) -> list[Shot]:
        """Raises ConfigError naming the file and the line."""
        out, first = [], None
        for number, (at_s, length, tokens, blocks) in enumerate(self._rows()):
            if number == self.count:
                break
            first = at_s if first is None else first
            prompt = self._prompt(number, min(length, self.max_length), blocks)
            out.append(Shot(max(0.0, at_s - first) / self.speed, prompt, min(tokens, self.most_tokens)))
        if not out:
            raise ConfigError("trace", f"{self.path} holds no request")
        return out

    def _prompt(self, number: int, length: int, blocks: list[int]) -> list[int]:
        """Equal block hashes give equal ids; what no hash covers is the request's own."""
        prompt: list[int] = []
        for block in blocks[: length // BLOCK]:
            prompt += _ids(random.Random(f"headrace block {self.seed} {block}"), BLOCK, self.max_id)
        own = random.Random(f"headrace own {self.seed} {number}")
        return prompt + _ids(own, length - len(prompt), self.max_id)

    def _rows(self) -> Iterator[tuple[float, int, int, list[int]]]:
        try:
            if self.path.stat().st_size > MAX_TRACE_BYTES:
                raise ConfigError("trace", f"{self.path} is larger than {MAX_TRACE_BYTES} bytes")
            with self.path.open(encoding="utf-8-sig") as file:
                rows: Iterator[Any] = csv.DictReader(file) if self.path.suffix == ".csv" else file
                for number, row in enumerate(rows, 1):
                    try:
                        found = _csv_row(row) if self.path.suffix == ".csv" else _json_row(row)
                    except (ValueError, KeyError, TypeError) as error:
                        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
                        raise ConfigError("trace", f"{self.path}, request {number} is none: {what}") from error
                    if min(found[1], found[2]) >= 1:
                        yield found
        except OSError as error:
            raise ConfigError("trace", f"{self.path}: {error.strerror}") from error


def _json_row(line: str) -> tuple[float, int, int, list[int]]:
    row = json.loads(line)
    return row["timestamp"] / 1000, int(row["input_length"]), int(row["output_length"]), list(row.get("hash_ids") or [])


def _csv_row(row: dict[str, str]) -> tuple[float, int, int, list[int]]:
    at = datetime.fromisoformat(row["TIMESTAMP"].strip()[:26])  # the files write seven digits of a second
    return at.timestamp(), int(row["ContextTokens"]), int(row["GeneratedTokens"]), []


def _ids(drawn: random.Random, length: int, max_id: int) -> list[int]:
    low = min(1000, max_id // 2)
    return [drawn.randrange(low, max_id) for _ in range(length)]
