"""What saving costs: two engines in turns, one with a KV store and one without, on prompts neither has seen.

    python scripts/kv_save_cost.py --rounds 12 --length 1536           # prompts
    python scripts/kv_save_cost.py --decode 512 --streams 8            # decoding: as many tokens of each stream

Prints the median ratio of processor time (all threads, until the saver is done) and of wall time until the answers are
there, with the spread between quartiles. Wall time means something on a quiet machine only (and threads that wait spin
for a while, so on a busy one even processor time is noisy); so does the throughput of
decoding, which is the ratio of wall times turned over.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from typing import Any

from headrace import LLM, SamplingParams

SETTLE_S = 0.5  # the saver works behind the answer


def cost(llm: LLM, prompts: list[list[int]], tokens: int) -> tuple[float, float]:
    """Seconds of wall time until the answers, and of processor time until the saver is done."""
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    wall, busy = time.perf_counter(), time.process_time()
    llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling)
    wall = time.perf_counter() - wall
    time.sleep(SETTLE_S)
    return wall, time.process_time() - busy


def tell(name: str, ratios: list[float]) -> None:
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"{name} x {middle:.3f} ({low:.3f} to {high:.3f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--length", type=int, default=None, help="prompt tokens; default: 1536, with --decode 16")
    parser.add_argument("--decode", type=int, default=1, help="tokens to generate")
    parser.add_argument("--streams", type=int, default=1)
    args = parser.parse_args()
    length = args.length or (1536 if args.decode == 1 else 16)
    settings: dict[str, Any] = {"kv_memory": 512 << 20, "max_model_len": length + args.decode + 64}
    walls, times = [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        LLM(kv_store="off", **settings) as plain,
        LLM(kv_store=folder, kv_store_size=2 << 30, **settings) as saving,
    ):
        for turn in range(args.rounds + 1):
            engines = [plain, saving] if turn % 2 else [saving, plain]
            first = turn * args.streams
            prompts = [
                [1000 + (number * 7919 + 31 * i) % 9000 for i in range(length)]
                for number in range(first, first + args.streams)
            ]
            found = {id(llm): cost(llm, prompts, args.decode) for llm in engines}
            if turn:  # the first warms both
                walls.append(found[id(saving)][0] / found[id(plain)][0])
                times.append(found[id(saving)][1] / found[id(plain)][1])
        counts = saving.stats.kv_store
    print(f"{counts['saved']} grains saved, {counts['dropped']} not")
    tell("processor time", times)
    tell("wall time", walls)


if __name__ == "__main__":
    main()
