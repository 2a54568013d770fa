"""What exists twice must be equal: enumerations of the core and the contract, and the house's own rules."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from headrace import _core
from headrace.contract import layout, plan

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "headrace").rglob("*.py"))
HEADERS = sorted((ROOT / "csrc").rglob("*.h"))


def cpp_enum(header: str, name: str) -> dict[str, int]:
    """Names (without k, upper case) and values of an enum class in csrc/core."""
    text = (ROOT / "csrc" / "core" / header).read_text()
    body = re.search(rf"enum class {name} [^{{]*{{(.*?)}};", text, re.DOTALL)
    assert body, f"{name} is not in {header}"
    pairs = re.findall(r"k(\w+)\s*=\s*(\d+)", body.group(1))
    return {re.sub(r"(?<!^)(?=[A-Z])", "_", key).upper(): int(value) for key, value in pairs}


@pytest.mark.parametrize(
    ("header", "name", "mirror"),
    [
        ("types.h", "StepKind", plan.StepKind),
        ("types.h", "Clip", plan.Clip),
        ("types.h", "Note", plan.Note),
        ("types.h", "Finish", plan.Finish),
        ("types.h", "GroupKind", layout.KVKind),
        ("scheduler.h", "Outcome", plan.Outcome),
    ],
)
def test_enumerations_are_equal_on_both_sides(header: str, name: str, mirror: type) -> None:
    assert cpp_enum(header, name) == {item.name: int(item) for item in mirror}  # type: ignore[attr-defined]


def test_the_core_s_plan_has_every_array_the_contract_names() -> None:
    missing = [name for name in vars(plan.StepPlan) if not name.startswith("_") and not hasattr(_core.StepPlan, name)]
    assert missing == []


def test_only_env_reads_the_environment() -> None:
    offenders = [p for p in SOURCES if p.name != "env.py" and re.search(r"os\.(environ|getenv)", p.read_text())]
    assert offenders == []


def test_core_and_kernels_are_strangers_and_know_no_python() -> None:
    for folder, other in (("core", "kernels"), ("kernels", "core")):
        for path in (ROOT / "csrc" / folder).rglob("*.*"):
            text = path.read_text()
            assert f'#include "{other}/' not in text, path
            assert "nanobind" not in text, path
            assert "Python.h" not in text, path


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_file_says_what_it_is_and_stays_readable(path: Path) -> None:
    text = path.read_text()
    doc = ast.get_docstring(ast.parse(text))
    assert doc, "a module docstring says what the file is"
    assert len(text.splitlines()) <= 320, "a file this long wants a second room"
    assert path.name != "utils.py"


@pytest.mark.parametrize("path", HEADERS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_header_says_what_it_is(path: Path) -> None:
    assert path.read_text().startswith("//"), "a header begins with what it is and must never do"
