"""What skipping the decoder half of a long prompt saves, and what it costs, on one DeepSeek-V4.1 checkpoint.

    .venv/bin/python scripts/v41_truncation.py --model DIR --tokens 2048,4096,8192,16000 --keep 140,512

Per number of tokens one prompt of random ids, then some more ids fed one by one as if they had been generated. Per
value of ``keep``: rows that decoder layers computed, user time of the prompt against that of computing everything
(which runs before and after), the largest logit difference at the prompt's end, and the perplexity of the ids that
follow, as a ratio.
``--model dummy:config.json`` measures a shape; ``--table`` writes the table into a document, between its markers.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from headrace.api.launch import open_tokenizer, token_map_of
from headrace.kernels.resolve import resolve_ops
from headrace.lab.bench.documents import check_text, insert_text
from headrace.lab.bench.machine import describe, machine_facts
from headrace.models.context import ForwardContext, GroupIndex
from headrace.models.deepseek_v41.forward import V41Model
from headrace.models.deepseek_v41.truncation import BACKTRACKING, COMPACT, Truncation, exact_keep
from headrace.models.registry import load_model
from headrace.models.sources import resolve_model
from headrace.models.weights import open_checkpoint
from headrace.worker.kv_tensors import allocate_kv

BLOCK = 128
MARKER = "v41 truncation"
FOLLOWING = 16


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    tokens: int
    keep: int
    decoder_rows: int
    time_ratio: float
    logit_difference: float
    perplexity_ratio: float


class Sequence:
    """One sequence with blocks of its own, fed in chunks of 512 tokens."""

    def __init__(self, model: V41Model, capacity: int) -> None:
        groups, per_group = len(model.kv_layout.groups), -(-capacity // BLOCK)
        self.model, self.length = model, 0
        self.kv = allocate_kv(model.kv_layout, groups * per_group + 1, BLOCK)
        self.tables = torch.arange(1, groups * per_group + 1, dtype=torch.int32).view(groups, 1, per_group)

    def feed(self, ids: list[int], known: int, chunk: int = 512) -> Tensor:
        """Hidden states of ``ids``; ``known`` tokens are known of the sequence."""
        return torch.cat([self._step(ids[at : at + chunk], known) for at in range(0, len(ids), chunk)])

    def _step(self, ids: list[int], known: int) -> Tensor:
        first, self.length = self.length, self.length + len(ids)
        unused = torch.empty(len(ids), dtype=torch.int32)  # slots follow from the tables
        return self.model.forward(
            ForwardContext(
                self.model.arithmetic.ops,
                torch.tensor(ids, dtype=torch.int32),
                torch.arange(first, self.length, dtype=torch.int32),
                torch.tensor([0, len(ids)], dtype=torch.int32),
                torch.tensor([self.length], dtype=torch.int32),
                [GroupIndex(table, unused) for table in self.tables],
                self.kv,
                torch.tensor([known], dtype=torch.int32),
            )
        )


@dataclass(frozen=True)
class Run:
    user_s: float
    decoder_rows: int
    last: Tensor  # (V,) logits at the prompt's end
    mean_logprob: float


def run(model: V41Model, prompt: list[int], following: list[int], truncation: Truncation) -> Run:
    model.truncate(truncation)
    sequence = Sequence(model, len(prompt) + len(following))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    hidden = sequence.feed(prompt, len(prompt))
    user_s = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
    rows, last = int((~hidden.isnan().any(1)).sum()), model.logits(hidden[-1:])[0]
    logits, scores = last, []
    for number, token in enumerate(following):
        scores.append(float(logits.log_softmax(0)[token]))
        logits = model.logits(sequence.feed([token], len(prompt) + number + 1))[0]
    return Run(user_s, rows, last, sum(scores) / len(scores))


def compare(model: V41Model, tokens: int, keeps: list[int]) -> list[Row]:
    rng = random.Random(1)
    prompt, following = ([rng.randrange(model.vocab_size) for _ in range(n)] for n in (tokens, FOLLOWING))
    whole, rows = run(model, prompt, following, Truncation()), []
    for keep in keeps:
        part = run(model, prompt, following, Truncation(COMPACT, keep))
        again = run(model, prompt, following, Truncation())
        ratio = part.user_s / ((whole.user_s + again.user_s) / 2)
        difference = float((part.last - whole.last).abs().max())
        perplexity = float(torch.tensor(whole.mean_logprob - part.mean_logprob).exp())
        rows.append(Row(tokens, keep, part.decoder_rows, ratio, difference, perplexity))
        whole = again
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", default="2048")
    parser.add_argument("--keep", default="")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--table", type=Path, help="document to write the table into")
    args = parser.parse_args()
    if args.table is not None:
        check_text(args.table, MARKER)
    torch.set_num_threads(1)
    source = resolve_model(args.model, offline=True)
    checkpoint = open_checkpoint(Path(source.path), dummy_seed=0 if source.dummy else None)
    token_map = token_map_of(open_tokenizer(source))
    model = load_model(checkpoint, resolve_ops("cpu", strict=True), exact=True, token_map=token_map)
    assert isinstance(model, V41Model), "this script is about DeepSeek-V4.1"
    keeps = [int(k) for k in args.keep.split(",") if k] or [
        model.config.window + BACKTRACKING,
        exact_keep(model.config),
    ]
    with torch.inference_mode():
        rows = [row for tokens in args.tokens.split(",") for row in compare(model, int(tokens), keeps)]
    if args.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    print(table(rows))
    if args.table is not None:
        measured = f"Measured on: {describe(machine_facts())}; model {source.name}."
        insert_text(args.table, MARKER, f"{measured}\n\n{table(rows)}\n")


def table(rows: list[Row]) -> str:
    lines = ["| tokens | keep | decoder rows | time | largest logit difference | perplexity |"]
    lines.append("|---:|---:|---:|---:|---:|---:|")
    for r in rows:
        figures = f"{r.time_ratio:.2f} | {r.logit_difference:.2g} | {r.perplexity_ratio:.4f}"
        lines.append(f"| {r.tokens} | {r.keep} | {r.decoder_rows} | {figures} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
