"""What saving costs a prompt: two engines in turns, one with a KV store and one without, on prompts neither has seen.

    python scripts/kv_save_cost.py --rounds 12 --length 1536

Prints the median ratio of processor time (all threads, until the saver is done) and of wall time. Wall time means
something on a quiet machine only.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from typing import Any

from headrace import LLM, SamplingParams

PROMPT_ONLY = SamplingParams(temperature=0, max_tokens=1)
SETTLE_S = 0.5  # the saver works behind the answer


def cost(llm: LLM, prompt: list[int]) -> tuple[float, float]:
    """Seconds of wall time until the answer, and of processor time until the saver is done."""
    wall, busy = time.perf_counter(), time.process_time()
    llm.generate([{"prompt_token_ids": prompt}], PROMPT_ONLY)
    wall = time.perf_counter() - wall
    time.sleep(SETTLE_S)
    return wall, time.process_time() - busy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--length", type=int, default=1536, help="prompt tokens")
    args = parser.parse_args()
    settings: dict[str, Any] = {"kv_memory": 256 << 20, "max_model_len": args.length + 64}
    walls, times = [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        LLM(kv_store="off", **settings) as plain,
        LLM(kv_store=folder, kv_store_size=2 << 30, **settings) as saving,
    ):
        for turn in range(args.rounds + 1):
            engines = [plain, saving] if turn % 2 else [saving, plain]
            prompt = [1000 + (turn * 7919 + 31 * i) % 9000 for i in range(args.length)]
            found = {id(llm): cost(llm, prompt) for llm in engines}
            if turn:  # the first warms both
                walls.append(found[id(saving)][0] / found[id(plain)][0])
                times.append(found[id(saving)][1] / found[id(plain)][1])
        saved = saving.stats.kv_store["saved"]
    print(
        f"{saved} grains saved; processor time x {statistics.median(times):.3f}, wall x {statistics.median(walls):.3f}"
    )


if __name__ == "__main__":
    main()
