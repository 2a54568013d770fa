"""Expert placement on synthetic loads: how balanced the *next* window is, how many slots move, how long it takes.

Three loads: stationary (popularity never changes), drifting (it wanders from window to window) and few tokens (counts
are mostly noise, as in decoding small batches). ``python scripts/bench_placement.py`` prints a table per load.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from headrace.parallel.eplb.placement import ExpertPlacement, from_physical, imbalance, num_spares, place
from headrace.parallel.eplb.shuffle import keep_slots, moves
from headrace.parallel.eplb.swaps import improve

Counts = NDArray[np.int64]
Policy = Callable[[ExpertPlacement, Counts], ExpertPlacement]


def windows(kind: str, experts: int, parts: int, count: int, seed: int) -> Iterator[Counts]:
    """Windows of (parts, experts) token counts; eight experts per token are counted one by one."""
    random = np.random.default_rng(seed)
    popularity = random.lognormal(0.0, 1.0, experts)
    tokens = 2_000 if kind == "few tokens" else 200_000
    for _ in range(count):
        rows = []
        for _ in range(parts):
            if kind == "drifting":
                popularity = popularity * random.lognormal(0.0, 0.12, experts)
            rows.append(random.multinomial(tokens, popularity / popularity.sum()))
        yield np.stack(rows)


def policies(max_moves: int) -> dict[str, Policy]:
    def fresh(by_dot_product: bool) -> Policy:
        def solve(old: ExpertPlacement, loads: Counts) -> ExpertPlacement:
            slots = len(old.physical_to_logical)
            return keep_slots(old, place(loads, slots, old.num_ranks, by_dot_product=by_dot_product))

        return solve

    return {
        "keep the first": lambda old, _: old,
        "place anew, summed maximum": fresh(by_dot_product=False),
        "place anew, dot product": fresh(by_dot_product=True),
        f"at most {max_moves} moves": lambda old, loads: improve(old, loads, max_moves),
        f"anew once, then at most {max_moves} moves": anew_once(max_moves),
    }


def anew_once(max_moves: int) -> Policy:
    """Weights are moved wholesale once; from then on the placement is only mended."""
    placed = False

    def solve(old: ExpertPlacement, loads: Counts) -> ExpertPlacement:
        nonlocal placed
        if placed:
            return improve(old, loads, max_moves)
        placed = True
        return keep_slots(old, place(loads, len(old.physical_to_logical), old.num_ranks))

    return solve


def measure(policy: Policy, kind: str, experts: int, ranks: int, spares: int, args: argparse.Namespace) -> list[str]:
    balances, moved, seconds = [], [], []
    slots = np.concatenate([np.arange(experts), np.arange(spares) % experts])
    placement = from_physical(slots, experts, ranks)
    before: Counts | None = None
    for loads in windows(kind, experts, args.parts, args.windows, args.seed):
        if before is not None:
            start = time.perf_counter()
            new = policy(placement, before)
            seconds.append(time.perf_counter() - start)
            moved.append(len(moves(placement, new)))
            placement = new
            balances.append(imbalance(placement, loads.astype(np.float64)))
        before = loads
    steady = moved[1:]  # the first placement moves nearly everything, once
    return [
        f"{statistics.mean(balances):.3f}",
        f"{max(balances):.3f}",
        f"{moved[0]}",
        f"{statistics.mean(steady):.1f}",
        f"{statistics.median(seconds) * 1000:.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--spares", type=int, default=16, help="at least; rounded up to the ranks")
    parser.add_argument("--windows", type=int, default=12)
    parser.add_argument("--parts", type=int, default=4, help="parts of a window that history keeps apart")
    parser.add_argument("--moves", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    spares = num_spares(args.experts, args.ranks, args.spares)
    print(f"{args.experts} experts and {spares} spares on {args.ranks} ranks; one layer; {args.windows} windows")
    for kind in ("stationary", "drifting", "few tokens"):
        print(f"\n### {kind}\n")
        print("| policy | max/mean, next window | worst window | moved first | moved later, mean | solve, ms |")
        print("|---|---:|---:|---:|---:|---:|")
        for name, policy in policies(args.moves).items():
            cells = measure(policy, kind, args.experts, args.ranks, spares, args)
            print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
