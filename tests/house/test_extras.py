"""A part that is not installed is no part that works."""

from __future__ import annotations

from pathlib import Path

import pytest
from extras import needs

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("package", "data", "skipped"),
    [("json", "", False), ("no_such_package", "", True), ("no_such_package", "/data", False)],
)
def test_what_is_missing_is_skipped_only_without_test_data(
    package: str, data: str, skipped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_TEST_DATA", data)
    assert needs(package, "some").args == (skipped,)


def test_no_test_of_grammars_skips_by_itself() -> None:
    own = {"extras.py", Path(__file__).name}
    files = [path for path in TESTS.rglob("*.py") if path.name not in own]
    assert [path.name for path in files if 'find_spec("xgrammar")' in path.read_text()] == []
