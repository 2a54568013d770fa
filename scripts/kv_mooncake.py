"""The KV store in a Mooncake Store, against its real master: the backend suite, and an engine that begins anew.

    pip install mooncake-transfer-engine-non-cuda           # Debian: apt-get install libibverbs1 librdmacm1 libnuma1
    python scripts/kv_mooncake.py                           # starts mooncake_master on free ports

Prints what was loaded instead of computed and whether the answers are equal, to the bit; exit code 1 if they are not.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

START_S = 30.0
SETTINGS: dict[str, Any] = {"kv_memory": 128 << 20, "max_model_len": 2048, "kv_store_size": 256 << 20}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def master() -> Iterator[str]:
    """``HOST:PORT`` of a master in a process of its own."""
    spec = find_spec("mooncake")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("needs mooncake: pip install mooncake-transfer-engine-non-cuda")
    port = free_port()
    program = Path(spec.submodule_search_locations[0]) / "mooncake_master"
    process = subprocess.Popen(
        [program, f"--rpc_port={port}", "--rpc_address=127.0.0.1", f"--metrics_port={free_port()}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + START_S
        while not answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("mooncake_master did not start")
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def check_suite(address: str) -> bool:
    """The tests of every backend, this store among them."""
    command = [sys.executable, "-m", "pytest", "-q", "tests/unit/kv/test_kv_backends.py", "-k", "mooncake"]
    return subprocess.run(command, env=os.environ | {"HEADRACE_TEST_MOONCAKE": address}, check=False).returncode == 0


def check_engine(address: str, length: int) -> bool:
    """The second engine begins with an empty pool while the first, which lends the memory, is still there."""
    from headrace import LLM, SamplingParams

    prompt = [100 + i * 7 % 9000 for i in range(length)]
    sampling = SamplingParams(temperature=0, max_tokens=16, logprobs=2)
    answers, counts = [], dict[str, int]()
    with LLM(kv_store=f"mooncake://{address}", **SETTINGS) as first:
        [output] = first.generate([{"prompt_token_ids": prompt}], sampling)
        answers.append((output.outputs[0].token_ids, output.outputs[0].logprobs))
        deadline = time.monotonic() + START_S
        while first.stats.kv_store["saved"] < length // 128 and time.monotonic() < deadline:
            time.sleep(0.1)
            first.generate([{"prompt_token_ids": [1, 2, 3]}], SamplingParams(max_tokens=1))  # news come with turns
        with LLM(kv_store=f"mooncake://{address}", **SETTINGS) as second:
            [output] = second.generate([{"prompt_token_ids": prompt}], sampling)
            answers.append((output.outputs[0].token_ids, output.outputs[0].logprobs))
            counts = dict(second.stats.kv_store)
    equal, hits = answers[0] == answers[1], counts["hit_tokens"]
    print(f"{hits} of {length} prompt tokens came from the store; answers {'equal' if equal else 'DIFFER'}")
    return equal and hits > 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=900, help="prompt tokens")
    args = parser.parse_args()
    with master() as address:
        passed = check_suite(address)
        return 0 if check_engine(address, args.length) and passed else 1


if __name__ == "__main__":
    sys.exit(main())
