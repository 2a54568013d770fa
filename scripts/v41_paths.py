"""How much time a DeepSeek-V4.1 step takes on the fast path and on the readable one, in turns, as a ratio.

    .venv/bin/python scripts/v41_paths.py --model v41-mini --streams 1,8,32 --depth 512 --prompt 2048

The readable path is the same program with attention over records and the choice of entries in torch (the ops of the
reference backend): keys are gathered, decoded and masked for every layer and step. Both paths write the same caches.
One thread; processor time, which a busy machine changes less than the clock. ``--table`` writes the table into a
document, between its markers.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import process_time

import torch

from headrace.api.launch import open_tokenizer, token_map_of
from headrace.kernels.ops import Ops
from headrace.kernels.resolve import resolve_ops
from headrace.kernels.runtime import configure
from headrace.lab.bench.documents import check_text, insert_text
from headrace.lab.bench.machine import describe, machine_facts
from headrace.lab.script_arguments import positive, positives, run_script, v41_source
from headrace.models.context import ForwardContext, GroupIndex, Model
from headrace.models.registry import load_model
from headrace.models.sources import ModelSource
from headrace.models.weights import open_checkpoint
from headrace.worker.kv_tensors import allocate_kv

BLOCK, CHUNK = 128, 512
MARKER = "v41 paths"


@dataclass(frozen=True)
class Row:
    """One line of the table: milliseconds of a step or prompt by each path, medians, and the range of their ratios."""

    what: str
    readable_ms: float
    fast_ms: float
    ratio: float
    least: float
    most: float


class Batch:
    """Sequences with blocks of their own, fed the same number of random ids each."""

    def __init__(self, model: Model, sequences: int, capacity: int) -> None:
        groups, per = len(model.kv_layout.groups), -(-capacity // BLOCK)
        self.model, self.sequences, self.length = model, sequences, 0
        self.kv = allocate_kv(model.kv_layout, groups * sequences * per + 1, BLOCK)
        tables = torch.arange(1, groups * sequences * per + 1, dtype=torch.int32)
        self.tables = tables.view(groups, sequences, per)
        self.rng = random.Random(1)

    def feed(self, ops: Ops, tokens: int) -> None:
        count, first = self.sequences * tokens, self.length
        self.length += tokens
        ids = [self.rng.randrange(self.model.vocab_size) for _ in range(count)]
        positions = torch.arange(first, self.length, dtype=torch.int32).repeat(self.sequences)
        starts = torch.arange(0, count + 1, tokens, dtype=torch.int32)
        lengths = torch.full((self.sequences,), self.length, dtype=torch.int32)
        unused = torch.empty(count, dtype=torch.int32)  # slots follow from the tables
        groups = [GroupIndex(table, unused) for table in self.tables]
        ids_ = torch.tensor(ids, dtype=torch.int32)
        self.model.forward(ForwardContext(ops, ids_, positions, starts, lengths, groups, self.kv, lengths))


def compare(what: str, fast: Callable[[], None], readable: Callable[[], None], repeats: int) -> Row:
    fast(), readable()
    times = [(_time(readable), _time(fast)) for _ in range(repeats)]
    ratios = [slow / quick for slow, quick in times]
    slow, quick = (statistics.median(column) * 1e3 for column in zip(*times))
    return Row(what, slow, quick, statistics.median(ratios), min(ratios), max(ratios))


def _time(run: Callable[[], None]) -> float:
    before = process_time()
    run()
    return process_time() - before


def decode(model: Model, fast: Ops, plain: Ops, streams: int, depth: int, repeats: int) -> Row:
    """Steps of one row per sequence. Each path's turn is four of them."""
    batch = Batch(model, streams, depth + 8 * (repeats + 1))
    for at in range(0, depth, 64):
        batch.feed(fast, min(64, depth - at))

    def turn(ops: Ops) -> None:
        for _ in range(4):
            batch.feed(ops, 1)

    row = compare(f"decode, {streams} at {depth}", lambda: turn(fast), lambda: turn(plain), repeats)
    return replace(row, readable_ms=row.readable_ms / 4, fast_ms=row.fast_ms / 4)


def prefill(model: Model, fast: Ops, plain: Ops, tokens: int, repeats: int) -> Row:
    def turn(ops: Ops) -> None:
        batch = Batch(model, 1, tokens)
        for at in range(0, tokens, CHUNK):
            batch.feed(ops, min(CHUNK, tokens - at))

    return compare(f"prompt of {tokens}", lambda: turn(fast), lambda: turn(plain), repeats)


def load(source: ModelSource, ops: Ops) -> Model:
    checkpoint = open_checkpoint(Path(source.path), dummy_seed=0 if source.dummy else None)
    return load_model(checkpoint, ops, token_map=token_map_of(open_tokenizer(source)))


def table(rows: list[Row]) -> str:
    lines = ["| step | readable, ms | fast, ms | ratio |", "|---|---:|---:|---:|"]
    for r in rows:
        ratio = f"{r.ratio:.1f} ({r.least:.1f}–{r.most:.1f})"
        lines.append(f"| {r.what} | {r.readable_ms:.1f} | {r.fast_ms:.1f} | {ratio} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="v41-mini")
    parser.add_argument("--streams", type=positives, default=[1, 8, 32], metavar="N,N")
    parser.add_argument("--depth", type=positive, default=512)
    parser.add_argument("--prompt", type=positive, default=2048)
    parser.add_argument("--repeats", type=positive, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--table", type=Path, help="document to write the table into")
    args = parser.parse_args()
    if args.table is not None:
        check_text(args.table, MARKER)
    configure("cpu", 1)
    source = v41_source(args.model)
    fast, reference = resolve_ops("cpu", strict=True), resolve_ops("reference")
    own = {name: getattr(reference, name) for name in ("latent_attention", "choose_entries")}
    plain, model = replace(fast, **own), load(source, fast)
    with torch.inference_mode():
        rows = [decode(model, fast, plain, n, args.depth, args.repeats) for n in args.streams]
        rows.append(prefill(model, fast, plain, args.prompt, args.repeats))
    print(json.dumps([asdict(row) for row in rows]) if args.json else table(rows))
    if args.table is not None:
        insert_text(
            args.table, MARKER, f"Measured on: {describe(machine_facts())}; model {source.name}.\n\n{table(rows)}\n"
        )


if __name__ == "__main__":
    run_script(main)
