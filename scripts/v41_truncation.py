"""What skipping the decoder half of a long prompt saves, and what it costs, on one DeepSeek-V4.1 checkpoint.

    .venv/bin/python scripts/v41_truncation.py --model DIR --tokens 2048,4096,8192,16000 --keep 140,512

Per number of tokens one prompt of random ids, then some more ids fed one by one as if they had been generated. Per
value of ``keep``: rows that decoder layers computed, the share of all layers' rows that were, user time of the prompt
against that of computing everything (which runs before, and up to 4096 tokens after, too), the largest logit difference
at the prompt's end, and the perplexity of the ids that follow, as a ratio.
``--model dummy:config.json`` measures a shape, ``--wide`` a larger one of the tiny checkpoint's kind. Every run is told
on stderr as it ends; lines of the table come with their length, and ``--table`` writes them into a document, between
its markers, after each length: what was measured stays if a later length is stopped.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from headrace.api.launch import open_tokenizer, token_map_of
from headrace.contract.errors import ConfigError
from headrace.kernels.resolve import resolve_ops
from headrace.lab.bench.documents import check_text, insert_text
from headrace.lab.bench.machine import describe, machine_facts
from headrace.lab.script_arguments import positives, run_script, v41_source
from headrace.models.context import ForwardContext, GroupIndex
from headrace.models.deepseek_v41.forward import V41Model
from headrace.models.deepseek_v41.truncation import BACKTRACKING, COMPACT, OFF, Truncation, check_truncation, exact_keep
from headrace.models.registry import load_model
from headrace.models.sources import ModelSource
from headrace.models.weights import open_checkpoint
from headrace.models.weights.dummy import DummyCheckpoint
from headrace.worker.kv_tensors import allocate_kv

BLOCK = 128
MARKER = "v41 truncation"
WIDE = {
    "hidden_size": 512,
    "num_attention_heads": 16,
    "q_lora_rank": 128,
    "o_lora_rank": 64,
    "o_groups": 4,
    "moe_intermediate_size": 256,
    "n_routed_experts": 16,
    "index_topk": 64,
    "num_hidden_layers": 12,
    "compress_ratios": [0, 2, 2, 2, 2, 2] + [1] * 6 + [0, 0],
    "kv_source_layer_ids": [1, 3, 6],
    "index_source_layer_ids": [1, 3, 6, 9],
    "candidate_source_layer_id": 6,
    "engram_layer_ids": [1, 3],
    "dspark_target_layer_ids": [9, 10, 11],
}
FOLLOWING = 16
CHUNK = 512
TWICE = 4096  # tokens: longer prompts take minutes, in which a moment of disturbance counts for little


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    tokens: int
    keep: int
    decoder_rows: int
    layer_rows: float
    time_ratio: float
    logit_difference: float
    perplexity_ratio: float


class Sequence:
    """One sequence with blocks of its own, fed in chunks."""

    def __init__(self, model: V41Model, capacity: int) -> None:
        groups, per_group = len(model.kv_layout.groups), -(-capacity // BLOCK)
        self.model, self.length = model, 0
        self.kv = allocate_kv(model.kv_layout, groups * per_group + 1, BLOCK)
        self.tables = torch.arange(1, groups * per_group + 1, dtype=torch.int32).view(groups, 1, per_group)

    def feed(self, ids: list[int], known: int, chunk: int = CHUNK) -> tuple[int, Tensor]:
        """How many rows have a hidden state, and that of the last one (1, hidden); ``known`` tokens are known of the
        sequence. Nothing else is kept, whatever the length."""
        rows, last = 0, torch.empty(0)
        for at in range(0, len(ids), chunk):
            hidden = self._step(ids[at : at + chunk], known)
            rows, last = rows + int((~hidden.isnan().any(1)).sum()), hidden[-1:].clone()
        return rows, last

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


def user_seconds() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def run(model: V41Model, prompt: list[int], following: list[int], truncation: Truncation) -> Run:
    model.truncate(truncation)
    sequence = Sequence(model, len(prompt) + len(following))
    before = user_seconds()
    rows, hidden = sequence.feed(prompt, len(prompt))
    user_s = user_seconds() - before
    last = logits = model.logits(hidden)[0]
    scores = []
    for number, token in enumerate(following):
        scores.append(float(logits.log_softmax(0)[token]))
        _, hidden = sequence.feed([token], len(prompt) + number + 1)
        logits = model.logits(hidden)[0]
    found = Run(user_s, rows, last, sum(scores) / len(scores))
    what = "everything" if truncation.mode == OFF else f"keep {truncation.keep}"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{len(prompt)} tokens, {what}: {user_s:.1f} s of user time, peak {peak} MiB", file=sys.stderr, flush=True)
    return found


def compare(model: V41Model, tokens: int, keeps: list[int]) -> list[Row]:
    rng = random.Random(1)
    prompt, following = ([rng.randrange(model.vocab_size) for _ in range(n)] for n in (tokens, FOLLOWING))
    whole = run(model, prompt, following, Truncation())
    parts = [run(model, prompt, following, Truncation(COMPACT, keep)) for keep in keeps]
    whole_s = whole.user_s
    if tokens <= TWICE:
        whole_s = (whole_s + run(model, prompt, following, Truncation()).user_s) / 2
    return [row_of(model, keep, tokens, part, whole, whole_s) for keep, part in zip(keeps, parts)]


def row_of(model: V41Model, keep: int, tokens: int, part: Run, whole: Run, whole_s: float) -> Row:
    layers, first = model.config.num_layers, model.config.topology.first_decoder
    share = (first * tokens + (layers - first) * part.decoder_rows) / (layers * tokens)
    difference = float((part.last - whole.last).abs().max())
    perplexity = float(torch.tensor(whole.mean_logprob - part.mean_logprob).exp())
    return Row(tokens, keep, part.decoder_rows, share, part.user_s / whole_s, difference, perplexity)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", type=positives, default=[2048], metavar="N,N")
    parser.add_argument(
        "--keep",
        type=positives,
        default=[],
        metavar="N,N",
        help="default: the least that may be kept (a window and twelve), and the number from which it is exact",
    )
    parser.add_argument("--wide", action="store_true", help="a larger shape of the same kind, with dummy weights")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--table", type=Path, help="document to write the table into")
    args = parser.parse_args()
    if args.table is not None:
        check_text(args.table, marker_of(args))
    torch.set_num_threads(1)
    source = v41_source(args.model)
    model = load(source, wide=args.wide)
    lengths = args.tokens
    least, exact = model.config.window + BACKTRACKING, exact_keep(model.config)
    keeps = args.keep or [least, exact]
    check(model, lengths, keeps, least)
    rows: list[Row] = []
    with torch.inference_mode():
        for tokens in lengths:
            rows += compare(model, tokens, keeps)
            tell(
                rows,
                len(keeps),
                args,
                f"{describe(machine_facts())}; model {source.name}{', wider, dummy weights' if args.wide else ''}",
            )
    if args.json:
        print(json.dumps([asdict(row) for row in rows]))


def load(source: ModelSource, *, wide: bool) -> V41Model:
    checkpoint = open_checkpoint(Path(source.path), dummy_seed=0 if source.dummy or wide else None)
    token_map = token_map_of(open_tokenizer(source))
    if wide:
        kept = {k: v for k, v in checkpoint.config["text_config"].items() if k != "engram_num_embeddings"}
        config = {**checkpoint.config, "text_config": {**kept, **WIDE}}
        checkpoint, token_map = DummyCheckpoint(f"{source.name}, wider", config, seed=0), None
    model = load_model(checkpoint, resolve_ops("cpu", strict=True), exact=True, token_map=token_map)
    assert isinstance(model, V41Model)  # v41_source has seen to that
    return model


def check(model: V41Model, lengths: list[int], keeps: list[int], least: int) -> None:
    """Before the first run. Raises ConfigError."""
    for keep in keeps:
        if keep < least:
            raise ConfigError("--keep", f"must be at least {least} with this model, got {keep}")
        check_truncation(Truncation(COMPACT, keep), model.config)
    if max(lengths) + FOLLOWING > model.max_positions:
        raise ConfigError("--tokens", f"{max(lengths)} and {FOLLOWING} more exceed {model.max_positions} positions")


def marker_of(args: argparse.Namespace) -> str:
    return f"{MARKER}, wide" if args.wide else MARKER


def tell(rows: list[Row], latest: int, args: argparse.Namespace, measured: str) -> None:
    """The rows of a length that has just ended, and all so far into the document."""
    if not args.json:
        lines = table(rows).splitlines()
        print("\n".join(lines[-latest:] if len(rows) > latest else lines), flush=True)
    if args.table is not None:
        insert_text(args.table, marker_of(args), f"Measured on: {measured}.\n\n{table(rows)}\n")


def table(rows: list[Row]) -> str:
    lines = ["| tokens | keep | decoder rows | rows of all layers | time | largest logit difference | perplexity |"]
    lines.append("|---:|---:|---:|---:|---:|---:|---:|")
    for r in rows:
        figures = f"{r.layer_rows:.2f} | {r.time_ratio:.2f} | {r.logit_difference:.2g} | {r.perplexity_ratio:.4f}"
        lines.append(f"| {r.tokens} | {r.keep} | {r.decoder_rows} | {figures} |")
    return "\n".join(lines)


if __name__ == "__main__":
    run_script(main)
