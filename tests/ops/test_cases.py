"""Every case of the table: each backend agrees with the reference, under every instruction set."""

from __future__ import annotations

import pytest
import torch

from headrace.kernels.case_reports import support_matrix, time_cases
from headrace.kernels.cases import CASES, Case, call, prepare
from headrace.kernels.ops import Ops, op_names


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cpu_agrees_with_reference(case: Case, cpu: Ops, reference: Ops) -> None:
    want = call(reference, case.op, prepare(reference, case, seed=3))
    have = call(cpu, case.op, prepare(cpu, case, seed=3))
    assert len(have) == len(want)
    for mine, theirs in zip(have, want):
        torch.testing.assert_close(mine, theirs, atol=case.atol, rtol=case.rtol, equal_nan=True)


def test_names_are_unique_and_every_op_has_cases() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
    assert {case.op for case in CASES} == set(op_names())


def test_support_matrix_covers_every_op_and_says_yes() -> None:
    rows = support_matrix()
    assert {row["op"] for row in rows} == set(op_names())
    assert {row["backend"] for row in rows} == {"cpu", "reference"}
    assert all(row["supported"] and row["cases"] > 0 for row in rows)


def test_time_cases_reports_the_asked_cases() -> None:
    rows = time_cases(names=["rms_norm-64x576", "linear-1x576x1536"], repeats=2, seconds=1e-4)
    assert [row["case"] for row in rows] == ["linear-1x576x1536", "rms_norm-64x576"]
    assert all(row["best_us"] > 0 and row["isa"] for row in rows)
