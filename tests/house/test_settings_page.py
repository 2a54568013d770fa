"""``docs/settings.md`` lists every setting and every environment variable, in the words of the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "settings.md"


def words(text: str) -> str:
    """A docstring as one line of Markdown."""
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


def setting_rows() -> list[str]:
    """One table row for each field of the configuration's sections: name, default, what it is."""
    tree = ast.parse((ROOT / "src" / "headrace" / "config.py").read_text())
    sections = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name != "EngineConfig"]
    rows = []
    for section in sections:
        for field, doc in zip(section.body, section.body[1:]):
            if isinstance(field, ast.AnnAssign):
                assert isinstance(field.target, ast.Name)
                assert isinstance(doc, ast.Expr), f"{field.target.id} has no docstring"
                default = eval(compile(ast.Expression(field.value), "config.py", "eval"))  # literals and shifts
                rows.append(f"| `{field.target.id}` | `{default}` | {words(ast.literal_eval(doc.value))} |")
    return rows


def environment_names() -> set[str]:
    """Every name in the text of the only file that reads the environment."""
    return set(re.findall(r'"((?:HEADRACE|HF|XDG)_[A-Z_]+)"', (ROOT / "src" / "headrace" / "env.py").read_text()))


def test_every_setting_stands_on_the_page() -> None:
    rows, page = setting_rows(), PAGE.read_text().splitlines()
    assert len(rows) > 50
    missing = [row for row in rows if row not in page]
    assert not missing, "docs/settings.md lacks these lines:\n" + "\n".join(missing)


def test_the_page_has_no_setting_that_is_gone() -> None:
    listed = re.findall(r"^\| `([a-z_0-9]+)` \|", PAGE.read_text(), re.MULTILINE)
    known = [row.split("`")[1] for row in setting_rows()]
    assert sorted(listed) == sorted(known)


def test_every_environment_variable_stands_on_the_page() -> None:
    names = environment_names()
    assert "HEADRACE_ISA" in names
    page = PAGE.read_text()
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []
