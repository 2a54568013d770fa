"""The CPU backend: kernels of the ``_kernels`` extension behind the op interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def build() -> dict[str, Callable[..., Any]]:
    """Ops this backend serves, by name. Raises ImportError when the extension is not built."""
    from headrace import _kernels  # noqa: F401

    return {}
