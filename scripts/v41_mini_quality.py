"""What the small member of the V4.1 family knows, beside what counting words gives, and how it takes its own drafts:

python scripts/v41_mini_quality.py --model v41-mini
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from headrace import LLM
from headrace.lab.script_arguments import positive, run_script, v41_source
from headrace.lab.v41_training.measure import acceptance, counted_losses, held_out_loss, prompts_of
from headrace.lab.v41_training.text import VOCAB, Texts, in_order, read_texts

RULES = {"greedy": (0.0, "exact"), "drawn": (1.0, "rejection"), "drawn, exact": (1.0, "exact")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="v41-mini")
    parser.add_argument("--length", type=positive, default=256, help="tokens per piece of held-out text")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--prompts", type=positive, default=16, help="continuations whose drafts are counted")
    parser.add_argument("--tokens", type=positive, default=48, help="tokens of each")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    v41_source(args.model, vocab=VOCAB)
    texts = read_texts()
    found = {"losses": losses(texts, args), "drafts": drafts(texts, args)}
    if args.json:
        print(json.dumps(found, indent=1))
        return
    for name, loss in found["losses"].items():
        nats, perplexity, bits = loss.values()
        print(f"{name}: {nats:.3f} nats, perplexity {perplexity:.1f}, {bits:.2f} bits/byte")
    for name, counts in found["drafts"].items():
        print(f"drafts, {name}: {counts}")


def losses(texts: Texts, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    rows = in_order(texts.held_out, args.length)
    covered = [row[1:].tolist() for row in rows]
    size = sum(len(texts.tokenizer.decode(row).encode()) for row in covered) / sum(map(len, covered))
    found = counted_losses(texts.training, rows, VOCAB, size)
    with LLM(args.model, dtype=args.dtype, prefix_caching=False) as llm:
        found["model"] = held_out_loss(llm, rows, size)
    return {
        name: {"nats": loss.nats, "perplexity": loss.perplexity, "bits_per_byte": loss.bits_per_byte}
        for name, loss in found.items()
    }


def drafts(texts: Texts, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Every draft verified, so that the heads' own acceptance shows."""
    prompts = prompts_of(texts.held_out, 64)[: args.prompts]
    settings = {"dtype": args.dtype, "speculation": "draft_heads", "speculation_guard": False}
    found = {}
    for name, (temperature, rule) in RULES.items():
        with LLM(args.model, acceptance=rule, **settings) as llm:
            counts = acceptance(llm, prompts, args.tokens, temperature)
        share = counts.accepted / max(1, counts.verified)
        row_steps = counts.tokens - counts.accepted  # one token of each is the model's own
        found[name] = {
            "accepted": round(share, 3),
            "verified": counts.verified,
            "tokens_per_step_of_a_sequence": round(counts.tokens / row_steps, 2),
        }
    return found


if __name__ == "__main__":
    run_script(main)
