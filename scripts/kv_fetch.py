"""Who fetches from the KV store: the engine's threads, or a process beside it. Prints ratios, process over thread.

    python scripts/kv_fetch.py --rounds 8 --length 2048

Two engines over one store answer the same stored prompts in turns, one token each: alone, and while four other requests
decode. Prints the median ratios of wall time until the answers are there, with the spread between quartiles; above 1
the process is slower. Wall time means something on a quiet machine only. Exits with 1 when an answer differs or was
not loaded.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from typing import Any

from headrace import LLM, SamplingParams

STREAMS, DECODED = 4, 48
WAYS = ("thread", "process")


def prompt_of(number: int, length: int) -> list[int]:
    return [1000 + (number * 7919 + 31 * i) % 9000 for i in range(length)]


def ask(llm: LLM, number: int, length: int, streams: int) -> tuple[float, Any]:
    """Seconds until all answers are there, and the stored prompt's own."""
    short = [prompt_of(100 + i, 20) for i in range(streams)]
    params = [SamplingParams(temperature=0, max_tokens=DECODED, ignore_eos=True) for _ in short]
    params.append(SamplingParams(temperature=0, max_tokens=1, logprobs=5))
    prompts = [{"prompt_token_ids": ids} for ids in [*short, prompt_of(number, length)]]
    start = time.perf_counter()
    outputs = llm.generate(prompts, params)
    seconds = time.perf_counter() - start
    rows = outputs[-1].outputs[0].logprobs or []
    return seconds, [{token: value.logprob for token, value in row.items()} for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--length", type=int, default=2048)
    args = parser.parse_args()
    if args.rounds < 4:
        parser.error("--rounds must be at least 4: with fewer prompts the pool would still hold them")
    size = {"max_model_len": args.length + DECODED + 16, "kv_store_size": 4 << 30}
    equal, loaded = True, True
    with tempfile.TemporaryDirectory() as folder:
        with LLM(kv_store=folder, kv_memory=1 << 30, **size) as filling:
            truth = [ask(filling, number, args.length, 0)[1] for number in range(args.rounds + 1)]
        small = 3 * args.length * 24_000  # a pool that keeps two prompts at most
        with (
            LLM(kv_store=folder, kv_fetch="thread", kv_memory=small, **size) as threads,
            LLM(kv_store=folder, kv_fetch="process", kv_memory=small, **size) as process,
        ):
            engines = dict(zip(WAYS, (threads, process)))
            for streams in (0, STREAMS):
                ratios = []
                for number in range(args.rounds + 1):
                    took = {}
                    for way in WAYS if number % 2 else WAYS[::-1]:
                        before = engines[way].stats.kv_store["hit_tokens"]
                        took[way], answer = ask(engines[way], number, args.length, streams)
                        equal &= answer == truth[number]
                        loaded &= engines[way].stats.kv_store["hit_tokens"] > before
                    if number:  # the first warms both
                        ratios.append(took["process"] / took["thread"])
                low, middle, high = statistics.quantiles(ratios, n=4)
                beside = f"beside {streams} that decode" if streams else "alone"
                print(f"{beside}: x {middle:.3f} ({low:.3f} to {high:.3f}); thread {took['thread']:.3f} s", flush=True)
    print(f"answers equal: {equal}; all loaded: {loaded}")
    return 0 if equal and loaded else 1


if __name__ == "__main__":
    sys.exit(main())
