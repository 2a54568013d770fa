"""Suggestions for wrong names."""

from __future__ import annotations

import pytest

from headrace.contract.errors import InvalidRequest
from headrace.contract.near import check_fields, did_you_mean


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("temprature", ["temperature", "top_p"], "temperature"),
        ("max_tokens", ["max_output_tokens", "max_tool_calls"], "max_output_tokens"),
        ("messages", ["prompt", "input", "text"], "input"),
        ("parameters", ["name", "input_schema"], "input_schema"),
        ("quite_other", ["temperature"], None),
        ("temperature" * 9, ["temperature" * 9 + "s"], None),  # too long to be compared
    ],
)
def test_a_near_name_or_one_of_the_same_sense_is_told(name: str, known: list[str], meant: str | None) -> None:
    assert did_you_mean(name, known) == (f"; did you mean {meant}?" if meant else "")


def test_an_unknown_field_is_refused_by_its_place() -> None:
    check_fields("a[0]", {"x": 1}, ("x", "y"))
    with pytest.raises(InvalidRequest, match="unknown field") as told:
        check_fields("a[0]", {"x": 1, "z": 2}, ("x", "y"))
    assert told.value.field == "a[0].z"
