"""How much a flooding tenant costs another one: its p95 time to first token beside the flood, against alone.

Not part of CI; needs `pip install httpx`. Starts ``headrace serve --tenants`` itself, with two tenants and what comes
after ``--``: ``python scripts/measure_fairness.py -- --config small-steps.toml``, where the file holds a
``token_budget`` whose steps stay below ``--step`` seconds. Prints one JSON object; exits with 1 when the p95 exceeds
twice the one alone plus ``--step``, and when there was no flood: all its
threads must stand to the end, and tokens must have come to it meanwhile.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from headrace.api.tenants.registry import Registry, Tenant, hash_key, new_key
from local_server import local_server

WAIT_S = 300.0
BEGIN_S = 60.0  # for all floods to be under way


class WrongAnswer(Exception):
    """A refusal, an error event, or a stream without a token."""


class Later(WrongAnswer):
    """429: the queue is full, or its wait was too long. A flood comes again."""

    def __init__(self, words: str, wait_s: float) -> None:
        super().__init__(words)
        self.wait_s = wait_s


def first_token_s(url: str, key: str, words: int, answer: int, on_token: Callable[[], None] = lambda: None) -> float:
    """Seconds from sending a request to its first token; the stream is read to its end, ``on_token`` told of each event
    that brings one. Raises WrongAnswer."""
    prompt = f"{time.monotonic_ns()} " + "word " * words  # nothing of it is in the cache
    body = {"prompt": prompt, "max_tokens": answer, "stream": True, "temperature": 0, "ignore_eos": True}
    headers = {"authorization": f"Bearer {key}"}
    start, first = time.monotonic(), None
    with httpx.stream("POST", f"{url}/v1/completions", json=body, headers=headers, timeout=WAIT_S) as response:
        if response.status_code == 429:
            raise Later(response.read().decode(), float(response.headers.get("retry-after", "1")))
        if response.status_code != 200:
            raise WrongAnswer(f"refused: {response.read().decode()}")
        for line in response.iter_lines():
            if has_token(line):
                first = time.monotonic() - start if first is None else first
                on_token()
    if first is None:
        raise WrongAnswer("an answer without a token")
    return first


def has_token(line: str) -> bool:
    """Whether a line of a stream brings one. Raises WrongAnswer for an error event."""
    if not line.startswith("data: {"):
        return False
    event = json.loads(line[6:])
    if "error" in event:
        raise WrongAnswer(str(event["error"]))
    return bool(event.get("choices"))


class Flood:
    """Requests of one tenant, ``count`` at a time, until ``stop``. ``tokens``: events that brought some; ``answered``:
    ended well; ``refused``: told to come again; ``faults``: what else, each the end of a thread."""

    def __init__(self, count: int, ask: Callable[[Callable[[], None]], object]) -> None:
        self.tokens, self.answered, self.refused, self.faults = 0, 0, 0, list[str]()
        self._ask, self._lock, self._stop = ask, threading.Lock(), threading.Event()
        self._begun = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._once()
        except Exception as error:  # a thread would take it along in silence
            with self._lock:
                self.faults.append(f"{type(error).__name__}: {error}")

    def _once(self) -> None:
        try:
            self._ask(self._took)
        except Later as refusal:
            with self._lock:
                self.refused += 1
            self._stop.wait(refusal.wait_s)
            return
        with self._lock:
            self.answered += 1

    def _took(self) -> None:
        with self._lock:
            self.tokens += 1
        self._begun.set()

    def await_token(self) -> None:
        """Returns when the first has come; raises WrongAnswer when it does not."""
        if not self._begun.wait(BEGIN_S):
            raise WrongAnswer(f"there is no flood: {'; '.join(self.faults[:3]) or 'nothing is answered'}")

    @property
    def standing(self) -> int:
        """Threads that still ask."""
        return sum(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(WAIT_S)


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]


def measure(url: str, keys: dict[str, str], requests: int, floods: int) -> dict[str, Any]:
    """p95 of the quiet tenant's time to first token, alone and beside the flood; and what became of the flood."""
    alone = [first_token_s(url, keys["quiet"], 60, 8) for _ in range(requests)]
    flood = Flood(floods, lambda on_token: first_token_s(url, keys["flood"], 300, 64, on_token))
    flood.await_token()
    before = flood.tokens
    beside = [first_token_s(url, keys["quiet"], 60, 8) for _ in range(requests)]
    standing, tokens = flood.standing, flood.tokens - before
    flood.stop()
    told: dict[str, Any] = {"p95_alone_s": p95(alone), "p95_beside_s": p95(beside)}
    told |= {"floods": standing, "flood_tokens": tokens, "floods_answered": flood.answered}
    told["floods_refused"] = flood.refused
    return told | {"flood_faults": flood.faults[:3]}


def write_tenants(path: Path, keys: dict[str, str]) -> None:
    Registry([Tenant(name=name, key_sha256=hash_key(key)) for name, key in keys.items()]).save(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--floods", type=int, default=32, help="requests that the flooding tenant keeps open")
    parser.add_argument("--step", type=float, default=0.1, help="seconds a step may take")
    parser.add_argument("rest", nargs="*", help="after --: options of headrace serve")
    given = parser.parse_args()
    keys = {name: new_key() for name in ("quiet", "flood")}
    with tempfile.TemporaryDirectory() as folder:
        tenants = Path(folder) / "tenants.json"
        write_tenants(tenants, keys)
        with local_server(["--tenants", str(tenants), *given.rest]) as server:
            told = measure(server.url, keys, given.requests, given.floods)
    bound = 2 * told["p95_alone_s"] + given.step
    flooded = told["floods"] == given.floods and told["flood_tokens"] and not told["flood_faults"]
    kept = bool(told["p95_beside_s"] <= bound and flooded)
    print(json.dumps(told | {"bound_s": bound, "kept": kept}))
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
