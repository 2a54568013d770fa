"""Choosing a backend: fill each op from it, take the rest from the reference, and say which is which."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from headrace.contract.errors import ConfigError

from .ops import Ops, op_names

BACKENDS = ("cpu", "reference")

# A Weight made by one backend means nothing to another: these ops come from one backend or not at all.
_WEIGHT_OPS = ("pack_weight", "linear", "norm_linear", "gated_linear", "norm_argmax", "embedding")


def resolve_ops(backend: str = "cpu", strict: bool = False) -> Ops:
    """One ``Ops`` of a backend of ``BACKENDS``; ``provenance[op]`` names the backend that serves the op.

    Raises ConfigError for an unknown backend, for a backend that cannot be loaded, and, when ``strict``, for
    ops the backend lacks.
    """
    own = _load(backend)
    if any(name not in own for name in _WEIGHT_OPS):
        own = {name: op for name, op in own.items() if name not in _WEIGHT_OPS}
    missing = [name for name in op_names() if name not in own]
    if strict and missing:
        raise ConfigError("backend", f"{backend!r} lacks {', '.join(missing)}; drop strict to use the reference")
    reference = _load("reference") if missing else {}
    provenance = {name: backend if name in own else "reference" for name in op_names()}
    return Ops(**{name: own.get(name) or reference[name] for name in op_names()}, name=backend, provenance=provenance)


def _load(backend: str) -> dict[str, Callable[..., Any]]:
    if backend not in BACKENDS:
        raise ConfigError("backend", f"{backend!r} is unknown; choose one of {', '.join(BACKENDS)}")
    try:
        ops: dict[str, Callable[..., Any]] = import_module(f".{backend}", __package__).build()
    except ImportError as error:
        raise ConfigError(
            "backend",
            f"{backend!r} cannot be loaded ({error}); build and install the extension with `pip install .`, "
            "or choose the backend 'reference'",
        ) from error
    return ops
