"""Draws one seeded request a thousand times among neighbours that change, and counts the different answers.

    .venv/bin/python scripts/thousand_samples.py            # the default model, deterministic; exit status 1 unless one

An answer is its ids and the bits of its logprobs. Memory is bounded; the neighbours are random and mostly greedy.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from typing import Any

from headrace import LLM, SamplingParams

PROMPT = list(range(300, 330))


def neighbour(rng: random.Random, vocab: int) -> tuple[dict[str, Any], SamplingParams]:
    """A prompt of 1 to 60 ids, now and then one that shares our beginning."""
    shared = PROMPT[: rng.choice([0, 0, 10, 30])]
    ids = [*shared, *(rng.randrange(vocab) for _ in range(rng.randrange(1, 60)))]
    return {"prompt_token_ids": ids}, SamplingParams(
        max_tokens=rng.randrange(1, 16), temperature=rng.choice([0.0, 1.0])
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--dtype")
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rng, answers = random.Random(0), set[Any]()
    ours = SamplingParams(max_tokens=12, temperature=1.0, seed=20, logprobs=2)
    with LLM(
        args.model, dtype=args.dtype, deterministic=True, kv_memory=256 << 20, max_model_len=512, kv_store="off"
    ) as llm:
        done = 0
        while done < args.samples:
            count = min(32, args.samples - done)
            work = [({"prompt_token_ids": PROMPT}, ours)] * count
            work += [neighbour(rng, min(1000, llm.vocab_size)) for _ in range(rng.randrange(0, 24))]
            rng.shuffle(work)
            outputs = llm.generate([prompt for prompt, _ in work], [params for _, params in work])
            answers |= {bits(output) for output, (_, params) in zip(outputs, work) if params is ours}
            done += count
        name = llm.model_name
    if args.json:
        print(json.dumps({"model": name, "samples": args.samples, "different": len(answers)}))
    else:
        print(f"{name}: {args.samples} samples, {len(answers)} different")
    return 0 if len(answers) == 1 else 1


def bits(output: Any) -> tuple[Any, ...]:
    """Ids, and every logprob reported, as the exact number."""
    [choice] = output.outputs
    logprobs = tuple((token, entry.logprob.hex()) for row in choice.logprobs for token, entry in row.items())
    return tuple(choice.token_ids), logprobs


if __name__ == "__main__":
    sys.exit(main())
