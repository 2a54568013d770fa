"""Choosing a backend: provenance, fallback per op, and errors that say what to do."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.contract.errors import ConfigError
from headrace.kernels import cpu as cpu_backend
from headrace.kernels.ops import op_names
from headrace.kernels.reference import build as build_reference
from headrace.kernels.resolve import resolve_ops


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_backends_are_complete(backend: str) -> None:
    ops = resolve_ops(backend, strict=True)
    assert ops.name == backend
    assert ops.provenance == dict.fromkeys(op_names(), backend)


def test_a_missing_op_falls_back_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    full = cpu_backend.build()
    monkeypatch.setattr(cpu_backend, "build", lambda: {k: v for k, v in full.items() if k != "rope"})
    ops = resolve_ops("cpu")
    assert ops.provenance["rope"] == "reference"
    assert ops.rope is build_reference()["rope"]
    assert ops.provenance["linear"] == "cpu"
    with pytest.raises(ConfigError, match="lacks rope"):
        resolve_ops("cpu", strict=True)


def test_weight_ops_fall_back_together(monkeypatch: pytest.MonkeyPatch) -> None:
    full = cpu_backend.build()
    monkeypatch.setattr(cpu_backend, "build", lambda: {k: v for k, v in full.items() if k != "embedding"})
    provenance = resolve_ops("cpu").provenance
    assert {provenance[name] for name in ("pack_weight", "linear", "embedding")} == {"reference"}


def test_unknown_backend() -> None:
    with pytest.raises(ConfigError, match="'tpu' is unknown; choose one of cpu, reference"):
        resolve_ops("tpu")


def test_a_missing_extension_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def build() -> dict[str, Any]:
        raise ImportError("No module named 'headrace._kernels'")

    monkeypatch.setattr(cpu_backend, "build", build)
    with pytest.raises(ConfigError, match="pip install"):
        resolve_ops("cpu")
    assert resolve_ops("reference").provenance["linear"] == "reference"
