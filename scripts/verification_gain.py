"""What choosing the number of verified drafts is expected to bring, on a made-up cost that rises in stairs.

Tokens per millisecond, averaged over random confidences: no drafts, all of them, and as many as the planner chooses for
each step. Arithmetic only, nothing is timed. ``python scripts/verification_gain.py`` prints a table.
"""

from __future__ import annotations

import argparse
from random import Random

from headrace._core import StepCost
from headrace.worker.verify import choose_drafts

STAIRS = StepCost(sizes=[4, 8, 16, 32, 64, 128], times_ms=[1.0, 1.1, 1.4, 2.2, 4.0, 8.0])
ROUNDS = 400


def speeds(acceptance: float, num_seqs: int, num_drafts: int, rng: Random) -> tuple[float, float, float]:
    """(none, all, chosen) of one step whose confidences scatter around ``acceptance``."""
    rows = [[min(1.0, max(0.0, rng.gauss(acceptance, 0.25))) for _ in range(num_drafts)] for _ in range(num_seqs)]
    counts = [num_drafts] * num_seqs
    everything, expected, _ = choose_drafts(counts, rows, StepCost())
    total, chosen, _ = choose_drafts(counts, rows, STAIRS)
    return (
        num_seqs / STAIRS.time_ms(num_seqs, num_seqs),
        expected / STAIRS.time_ms(everything, num_seqs),
        chosen / STAIRS.time_ms(total, num_seqs),
    )


def table(rounds: int) -> list[str]:
    """Markdown, a line per acceptance and number of sequences."""
    lines = [
        "| acceptance | sequences | none | all of 7 | chosen | over the better |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for acceptance in (0.2, 0.5, 0.8, 0.95):
        for num_seqs in (1, 4, 16):
            rng = Random(f"{acceptance} {num_seqs}")
            columns = zip(*(speeds(acceptance, num_seqs, 7, rng) for _ in range(rounds)))
            none, everything, chosen = (sum(column) / rounds for column in columns)
            gain = chosen / max(none, everything)
            cells = [f"{acceptance}", f"{num_seqs}", *(f"{x:.2f}" for x in (none, everything, chosen)), f"{gain:.2f}×"]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    print("\n".join(table(parser.parse_args().rounds)))
