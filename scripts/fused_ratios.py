"""What fusing saves: processor time of each fused op over that of the ops it stands for, in turns, on one thread.

    .venv/bin/python scripts/fused_ratios.py

Weights have the default model's shapes, and there are enough of them that they come from beyond the second cache.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import thread_time_ns
from typing import Any

import torch

from headrace.kernels import case_inputs as inputs
from headrace.kernels.ops import Ops, SampleParams
from headrace.kernels.resolve import resolve_ops
from headrace.kernels.runtime import configure

HIDDEN, INNER, VOCABULARY, LAYERS, ROUNDS, KIND, EPS = 576, 1536, 49152, 16, 9, "Q8_0", 1e-5

Call = Callable[[Any], Any]


def packed(ops: Ops, n: int, k: int, count: int) -> list[Any]:
    return [ops.pack_weight(inputs.blocks(i, KIND, n, k)) for i in range(count)]


def cost(run: Call, weights: list[Any]) -> int:
    """Nanoseconds of one call with each weight."""
    start = thread_time_ns()
    for weight in weights:
        run(weight)
    return thread_time_ns() - start


def ratio(fused: Call, plain: Call, weights: list[Any]) -> float:
    pairs = [(cost(fused, weights), cost(plain, weights)) for _ in range(ROUNDS)]
    return median(a for a, _ in pairs) / median(b for _, b in pairs)


def ratios(ops: Ops, m: int, up: list[Any], down: list[Any], head: list[Any]) -> tuple[float, float, float]:
    """For m rows: norm and linear, gate and linear, head and greedy sampling."""
    x, y, wide, norm = torch.randn(m, HIDDEN), torch.randn(m, HIDDEN), torch.randn(m, 2 * INNER), torch.ones(HIDDEN)
    zeros, none = torch.zeros(m), torch.zeros(m, dtype=torch.int32)
    greedy = SampleParams(zeros, none, zeros + 1, zeros, none.long(), none.long())
    return (
        ratio(
            lambda w: ops.norm_linear(x, y, norm, EPS, w, None),
            lambda w: ops.linear(ops.add_rms_norm(x, y, norm, EPS)[0], w, None),
            up,
        ),
        ratio(lambda w: ops.gated_linear(wide, False, w), lambda w: ops.linear(ops.silu_mul(wide), w, None), down),
        ratio(
            lambda w: ops.norm_argmax(x, norm, EPS, w),
            lambda w: ops.sample(ops.linear(ops.rms_norm(x, norm, EPS), w, None), greedy),
            head,
        ),
    )


def main() -> None:
    configure("cpu", 1)
    ops = resolve_ops("cpu")
    up, down = packed(ops, 2 * INNER, HIDDEN, LAYERS), packed(ops, HIDDEN, INNER, LAYERS)
    head = packed(ops, VOCABULARY, HIDDEN, 1)
    print(" rows  norm + linear  gate + linear  norm + argmax")
    for m in (1, 4, 16, 64, 512):
        print(f"{m:5}" + "".join(f"{value:15.2f}" for value in ratios(ops, m, up, down, head)))


if __name__ == "__main__":
    main()
