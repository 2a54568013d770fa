"""Time to first token of a long prompt, computed and loaded from the KV store after a kill -9. Prints one JSON object.

    python scripts/kv_ttft.py --length 4096

Two processes answer the same prompt with one store, one token each; the first is killed once its KV is stored. Before
the measured prompt each answers a short one, so that neither loading nor the first step's preparations count. Exits
with 1 when the tokens or their logprobs differ in a bit, or the second found nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from typing import Any

from headrace import LLM, SamplingParams

WARM_UP = 64


def child(store: str, length: int, dtype: str) -> None:
    """Answers, tells, and waits for its end."""
    ids = random.Random(length).choices(range(1000, 40_000), k=length)
    with LLM(kv_store=store, dtype=dtype, max_model_len=length + 8) as llm:
        params = SamplingParams(temperature=0, max_tokens=1, logprobs=5)
        llm.generate([{"prompt_token_ids": ids[:WARM_UP][::-1]}], params)
        start = time.perf_counter()
        [output] = llm.generate([{"prompt_token_ids": ids}], params)
        seconds = time.perf_counter() - start
        rows = output.outputs[0].logprobs or []
        bits = repr([{token: value.logprob for token, value in row.items()} for row in rows])
        print(json.dumps({"seconds": seconds, "cached": output.num_cached_tokens, "bits": bits}), flush=True)
        time.sleep(600)


def answer_and_kill(arguments: argparse.Namespace, store: str) -> dict[str, Any]:
    command = [
        sys.executable,
        __file__,
        "--child",
        store,
        "--length",
        str(arguments.length),
        "--dtype",
        arguments.dtype,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        time.sleep(arguments.grace)  # the saver works behind the answer
        process.kill()
    return dict(told)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--grace", type=float, default=3.0, help="seconds between the answer and the kill")
    parser.add_argument("--child")
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.length, arguments.dtype)
        return 0
    with tempfile.TemporaryDirectory() as store:
        cold, warm = answer_and_kill(arguments, store), answer_and_kill(arguments, store)
    equal = cold["bits"] == warm["bits"]
    report = {
        "length": arguments.length,
        "dtype": arguments.dtype,
        "cold_s": cold["seconds"],
        "warm_s": warm["seconds"],
        "ratio": cold["seconds"] / warm["seconds"],
        "cached": warm["cached"],
        "bitwise_equal": equal,
    }
    print(json.dumps(report))
    return 0 if equal and warm["cached"] else 1


if __name__ == "__main__":
    sys.exit(main())
