"""How much a flooding tenant costs another one: its p95 time to first token beside the flood, against alone.

Not part of CI; needs `pip install httpx`. Starts ``headrace serve --tenants`` itself, with two tenants and what comes
after ``--``: ``python scripts/measure_fairness.py -- --config small-steps.toml``, where the file holds a
``token_budget`` whose steps stay below ``--step`` seconds. Prints one JSON object; exits with 1 when the p95 exceeds
twice the one alone plus ``--step``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from headrace.api.tenants.registry import Registry, Tenant, hash_key, new_key
from local_server import local_server

WAIT_S = 300.0


def first_token_s(url: str, key: str, words: int, answer: int) -> float:
    """Seconds from sending a request to its first token; the stream is read to its end."""
    prompt = f"{time.monotonic_ns()} " + "word " * words  # nothing of it is in the cache
    body = {"prompt": prompt, "max_tokens": answer, "stream": True, "temperature": 0, "ignore_eos": True}
    began, first = time.monotonic(), None
    with httpx.stream(
        "POST", f"{url}/v1/completions", json=body, headers={"authorization": f"Bearer {key}"}, timeout=WAIT_S
    ) as response:
        if response.status_code != 200:
            raise SystemExit(f"refused: {response.read().decode()}")
        for line in response.iter_lines():
            if line.startswith("data: {") and first is None:
                first = time.monotonic() - began
    assert first is not None
    return first


def flood(url: str, key: str, stop: threading.Event) -> None:
    while not stop.is_set():
        first_token_s(url, key, 300, 64)


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]


def measure(url: str, keys: dict[str, str], requests: int, floods: int) -> tuple[float, float]:
    """p95 of the quiet tenant's time to first token: alone, beside the flood."""
    alone = [first_token_s(url, keys["quiet"], 60, 8) for _ in range(requests)]
    stop = threading.Event()
    threads = [threading.Thread(target=flood, args=(url, keys["flood"], stop), daemon=True) for _ in range(floods)]
    for thread in threads:
        thread.start()
    time.sleep(3.0)
    beside = [first_token_s(url, keys["quiet"], 60, 8) for _ in range(requests)]
    stop.set()
    for thread in threads:
        thread.join(WAIT_S)
    return p95(alone), p95(beside)


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
            alone, beside = measure(server.url, keys, given.requests, given.floods)
    bound = 2 * alone + given.step
    told: dict[str, Any] = {"p95_alone_s": alone, "p95_beside_s": beside, "bound_s": bound, "kept": beside <= bound}
    print(json.dumps(told))
    return 0 if told["kept"] else 1


if __name__ == "__main__":
    sys.exit(main())
