"""Packages that not everybody installs: whether they are here, and the words for how to get them. Imports none."""

from __future__ import annotations

from importlib.util import find_spec

CLONE_INSTALL = ".venv/bin/python -m pip install --no-build-isolation -Cbuild-dir=build/py"


def missing(*modules: str) -> list[str]:
    """Those that cannot be imported; of a dotted name every part is looked for."""
    return [name for name in modules if not _found(name)]


def how_to_get(extra: str) -> str:
    """The ``extra`` of this package, as a command: for a clone, whose built libraries are used again, and for where the
    package came from an index."""
    here = f'{CLONE_INSTALL} -e ".[{extra}]"'
    return f'{here} in the clone (elsewhere: pip install "headrace[{extra}]")'


def _found(name: str) -> bool:
    parts = name.split(".")
    try:
        return all(find_spec(".".join(parts[: i + 1])) is not None for i in range(len(parts)))
    except (ImportError, ValueError):
        return False
