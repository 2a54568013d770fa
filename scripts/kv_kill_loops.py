"""Kills a writer of the KV store with -9 at random points, over and over; every value it had published must be found.

    python scripts/kv_kill_loops.py --loops 200

Each loop starts a writer on the same folder, kills it after a random time, opens the store and reads what the writer
had told; at the end, what all had told. Values check themselves: a payload is a function of its key. Prints one JSON
object; exits with 1 when anything published was lost, or anything read was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SUPPORT = ROOT / "tests" / "support"
PER_LOOP = 10_000  # more than a writer manages before it is killed


def run(folder: Path, loops: int, seed: int, longest_s: float = 0.25) -> dict[str, Any]:
    """Counts: values published, lost, wrong; and how many were recovered from unsealed segments."""
    rng = random.Random(seed)
    counts = {"loops": loops, "published": 0, "lost": 0, "wrong": 0, "recovered": 0}
    told: list[int] = []
    for loop in range(loops):
        news = _write_and_kill(folder, loop * PER_LOOP, rng.uniform(0, longest_s))
        _verify(folder, news, counts)
        told += news
    _verify(folder, told, counts)
    counts["published"] = len(told)
    return counts


def _write_and_kill(folder: Path, first: int, delay_s: float) -> list[int]:
    """The numbers that a writer told before it was killed, ``delay_s`` after its first."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{SUPPORT}"}
    command = [sys.executable, str(SUPPORT / "kv_writer.py"), str(folder), str(first), str(first + PER_LOOP)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        told = [process.stdout.readline()]
        time.sleep(delay_s)
        process.kill()
        told += process.stdout.readlines()
    return [int(line) for line in told if line.endswith("\n")]


def _verify(folder: Path, told: list[int], counts: dict[str, int]) -> None:
    if str(SUPPORT) not in sys.path:
        sys.path.insert(0, str(SUPPORT))
    from kv_values import found

    from headrace.kv.local import LocalStore

    store = LocalStore(folder, 8 << 30, segment_bytes=100_000)
    for number in told:
        try:
            counts["lost"] += not found(store, number)
        except AssertionError:
            counts["wrong"] += 1
    counts["recovered"] += store.counts.recovered
    store.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--loops", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        counts = run(Path(folder), arguments.loops, arguments.seed)
    print(json.dumps(counts))
    return 1 if counts["lost"] or counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
