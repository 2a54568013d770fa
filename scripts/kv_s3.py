"""The KV store in a bucket, against a real S3-speaking server: the backend suite, and an engine that begins anew.

    .venv/bin/python -m pip install --no-build-isolation -Cbuild-dir=build/py -e ".[s3]"
    .venv/bin/python -m pip install "moto[server,s3]" hypothesis pytest
    .venv/bin/python scripts/kv_s3.py                        # starts moto's server on a free port
    .venv/bin/python scripts/kv_s3.py --endpoint http://host:9000  # one that runs, AWS_... set, with a "headrace-kv"

Prints what was loaded instead of computed and whether the answers are equal, to the bit; exit code 1 if they are not.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

BUCKET = "headrace-kv"
START_S = 30.0
SETTINGS: dict[str, Any] = {"kv_memory": 128 << 20, "max_model_len": 2048}


@contextmanager
def moto_server() -> Iterator[str]:
    """A server in a process of its own, with the bucket in it."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL
    )
    endpoint = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_S
        while not _made_bucket(endpoint):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("moto's server did not start (pip install 'moto[server,s3]')")
            time.sleep(0.1)
        yield endpoint
    finally:
        process.terminate()
        process.wait(10)


def _made_bucket(endpoint: str) -> bool:
    try:
        with urlopen(Request(f"{endpoint}/{BUCKET}", method="PUT"), timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def check_suite(endpoint: str) -> bool:
    """The tests of every backend, this server among them."""
    command = [sys.executable, "-m", "pytest", "-q", "tests/unit/kv/test_kv_backends.py", "-k", "s3"]
    return subprocess.run(command, env=os.environ | {"HEADRACE_TEST_S3": endpoint}, check=False).returncode == 0


def run_engine(place: str, prompt: list[int]) -> tuple[Any, dict[str, int]]:
    """Tokens and logprobs of an engine that begins with an empty pool; what its store has done."""
    from headrace import LLM, SamplingParams

    with LLM(kv_store=place, **SETTINGS) as llm:
        sampling = SamplingParams(temperature=0, max_tokens=16, logprobs=2)
        [output] = llm.generate([{"prompt_token_ids": prompt}], sampling)
        choice = output.outputs[0]
        counts = dict(llm.stats.kv_store)
    return (choice.token_ids, choice.logprobs), counts


def check_engine(length: int) -> bool:
    place, prompt = f"s3://{BUCKET}/{secrets.token_hex(4)}", [100 + i * 7 % 9000 for i in range(length)]
    computed, _ = run_engine(place, prompt)
    loaded, counts = run_engine(place, prompt)
    equal, hits = computed == loaded, counts["hit_tokens"]
    print(f"{hits} of {length} prompt tokens came from the bucket; answers {'equal' if equal else 'DIFFER'}")
    return equal and hits > 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--endpoint", help="of a server that runs; none: moto's is started")
    parser.add_argument("--length", type=int, default=900, help="prompt tokens")
    args = parser.parse_args()
    if args.endpoint is not None:
        return run(args.endpoint, args.length)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(name, "test")
    with moto_server() as endpoint:
        return run(endpoint, args.length)


def run(endpoint: str, length: int) -> int:
    os.environ.setdefault("AWS_REGION", "us-east-1")
    os.environ["AWS_ENDPOINT"] = endpoint
    os.environ["AWS_ALLOW_HTTP"] = "true"
    passed = check_suite(endpoint)
    return 0 if check_engine(length) and passed else 1


if __name__ == "__main__":
    sys.exit(main())
