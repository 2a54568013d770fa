"""What repacking a model's weights takes of a load: the figures behind docs/adr/0008.

python scripts/pack_cost.py [MODEL]
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

from headrace.kernels.ops import Ops
from headrace.kernels.quant import Stored
from headrace.kernels.resolve import resolve_ops
from headrace.models.registry import load_model
from headrace.models.sources import resolve_model
from headrace.models.weights.open import open_checkpoint

REPEATS = 5


def load_once(path: Path) -> tuple[float, float, float, float]:
    """Wall and processor seconds of a whole load, and of the packing in it."""
    ops = resolve_ops("cpu")
    spent = [0.0, 0.0]

    def packing(stored: Stored) -> object:
        wall, cpu = perf_counter(), process_time()
        weight = ops.pack_weight(stored)
        spent[0] += perf_counter() - wall
        spent[1] += process_time() - cpu
        return weight

    timed: Ops = replace(ops, pack_weight=packing)
    wall, cpu = perf_counter(), process_time()
    load_model(open_checkpoint(path), timed)
    return perf_counter() - wall, process_time() - cpu, spent[0], spent[1]


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct"
    path = resolve_model(name).path
    runs = [load_once(path) for _ in range(REPEATS + 1)][1:]
    load, load_cpu, pack, pack_cpu = (median(column) for column in zip(*runs, strict=True))
    print(f"load {load:.3f} s ({load_cpu:.3f} s of processor time); of it packing {pack:.3f} s ({pack_cpu:.3f} s)")


if __name__ == "__main__":
    main()
