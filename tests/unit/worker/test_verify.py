"""The verification planner in numpy: the shared case table, and the C++ form over random batches."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from headrace import _core
from headrace._core import InvalidField, StepCost
from headrace.worker.verify import choose_drafts, drafts_for_total

TABLE = Path(__file__).parents[3] / "csrc" / "tests" / "verify_cases.txt"
LINES = [line for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]


def ints(text: str) -> list[int]:
    return [int(word) for word in text.split()]


def floats(text: str) -> list[float]:
    return [float(word) for word in text.split() if word != "-"]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split(";")[0])
def test_the_shared_table(line: str) -> None:
    _, drafts, confidences, sizes, times, slope, sampler, most, total, expected, lengths = line.split(";")
    rows = [floats(row) for row in confidences.split("/")][: len(ints(drafts))]
    cost = StepCost(sizes=ints(sizes), times_ms=floats(times), slope_ms=float(slope), sampler_ms=float(sampler))
    got = choose_drafts(ints(drafts), rows, cost, *([int(most)] if int(most) else []))
    assert got[0] == int(total)
    assert got[1] == pytest.approx(float(expected), abs=1e-12)
    assert got[2].tolist() == ints(lengths)
    assert drafts_for_total(ints(drafts), rows, got[0]).tolist() == ints(lengths)


def random_batch(random: Random) -> tuple[list[int], list[list[float]], StepCost]:
    num_drafts = [random.randrange(5) for _ in range(random.randint(1, 12))]
    rows = [[random.random() for _ in range(n)] if random.random() < 0.8 else [] for n in num_drafts]
    sizes = sorted(random.sample(range(1, 64), random.randint(1, 8)))
    cost = StepCost(
        sizes=sizes,
        times_ms=[random.uniform(0.5, 4) for _ in sizes],
        slope_ms=random.choice([0.0, 0.01]),
        sampler_ms=random.random(),
        sampler_by_seqs=[(len(num_drafts), random.random())] if random.random() < 0.5 else [],
    )
    return num_drafts, rows, cost


def test_numpy_and_cpp_are_one_function() -> None:
    random = Random(3)
    for _ in range(3000):
        num_drafts, rows, cost = random_batch(random)
        most = random.choice([2**31 - 1, random.randint(1, 40)])
        there, here = _core.choose_drafts(num_drafts, rows, cost, most), choose_drafts(num_drafts, rows, cost, most)
        assert (here[0], here[1], here[2].tolist()) == (there.total, there.expected, there.drafts)
        total = random.randint(0, 40)
        assert drafts_for_total(num_drafts, rows, total).tolist() == _core.drafts_for_total(num_drafts, rows, total)


def test_bad_input_is_named() -> None:
    with pytest.raises(InvalidField, match=r"^confidences: "):
        _core.choose_drafts([1], [[1.5]], StepCost())
    with pytest.raises(InvalidField, match=r"^confidences: "):
        _core.choose_drafts([1, 2], [[1.0]], StepCost())
    with pytest.raises(InvalidField, match=r"^num_drafts: "):
        _core.choose_drafts([-1], [[]], StepCost())
    with pytest.raises(InvalidField, match=r"^sizes: "):
        StepCost(sizes=[2, 1], times_ms=[1.0, 1.0])
