"""Sends 10,000 mixed requests through one engine and watches its resident size. Exit status 1 when it grows.

    .venv/bin/python scripts/memory_flat.py            # the default model; --model dummy:config.json for a quick look

The KV pool is kept small, so that the first tenth of the requests touches all of it; growth is counted from there.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from headrace import LLM, SamplingParams

ALLOWED_GROWTH = 0.02  # of the size after warm-up


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def random_request(rng: random.Random, vocab: int) -> tuple[dict[str, Any], SamplingParams]:
    """Mixed lengths, shared beginnings, penalties, logprobs and stops."""
    shared = [7] * rng.choice([0, 0, 40])
    prompt = shared + [rng.randrange(vocab) for _ in range(rng.randrange(1, 12))]
    wishes: dict[str, Any] = {"max_tokens": rng.randrange(1, 6), "temperature": rng.choice([0.0, 1.0])}
    if rng.random() < 0.2:
        wishes["logprobs"] = 3
    if rng.random() < 0.1:
        wishes["prompt_logprobs"] = 1
    if rng.random() < 0.2:
        wishes |= {"repetition_penalty": 1.2, "top_p": 0.9, "logit_bias": {rng.randrange(vocab): 1.0}}
    return {"prompt_token_ids": prompt}, SamplingParams(**wishes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rng = random.Random(0)
    rows = []
    with LLM(args.model, kv_memory=64 << 20, max_model_len=512, kv_store="off") as llm:
        vocab = 1000 if llm.tokenizer is None else llm.tokenizer.vocab_size
        vocab = min(vocab, llm.vocab_size if llm.eyes is None else llm.eyes.token_id)  # no place for pictures
        started = time.monotonic()
        round_size = max(1, args.requests // 20)
        for done in range(round_size, args.requests + 1, round_size):
            batch = [random_request(rng, vocab) for _ in range(round_size)]
            llm.generate([p for p, _ in batch], [s for _, s in batch])
            rows.append({"requests": done, "resident_mib": round(resident_bytes() / 2**20, 1)})
            if not args.json:
                print(f"{done:6d} requests  {rows[-1]['resident_mib']:8.1f} MiB  {time.monotonic() - started:6.0f} s")
        used = llm.engine.core.num_used_blocks
    base, last = rows[1]["resident_mib"], rows[-1]["resident_mib"]
    growth = last / base - 1
    flat = growth <= ALLOWED_GROWTH and used == 0
    report = {"growth": round(growth, 4), "blocks_left": used, "flat": flat, "rows": rows}
    print(json.dumps(report) if args.json else f"growth since warm-up {growth:+.2%}, blocks left {used}: flat={flat}")
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
