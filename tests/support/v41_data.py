"""The golden V4.1 checkpoints: where they are, how they are loaded, what they state. Test helper."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from headrace import env
from headrace.api.launch import token_map_of
from headrace.api.text.tokenizer import load_tokenizer
from headrace.kernels.resolve import resolve_ops
from headrace.models.deepseek_v41.assembly import load_v41
from headrace.models.deepseek_v41.forward import V41Model
from headrace.models.weights import open_checkpoint

VARIANTS = ("v41-tiny", "v41-tiny/w16")
PROMPTS = ("p0", "p1", "p2", "p3")


def folder(variant: str = VARIANTS[0]) -> Path:
    """A golden checkpoint's folder; skips the test when no test data are named. Missing data are a failure."""
    data = env.test_data()
    if data is None:
        pytest.skip("HEADRACE_TEST_DATA is not set")
    return data / variant


@dataclass(frozen=True)
class Goldens:
    """Values by name, and what is stated about each of them."""

    values: dict[str, Tensor]
    stated: dict[str, Any]

    def __getitem__(self, name: str) -> Tensor:
        return self.values[name]

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def ids(self, prompt: str) -> list[int]:
        ids: list[int] = self.values[f"{prompt}.ids"].tolist()
        return ids

    def median_limit(self, name: str) -> float:
        """For the median over rows of the largest difference: as stated, or made by the same rule (three times the
        observed disagreement, at least 1e-3)."""
        about = self.stated["tensors"][name]
        return float(about.get("suggested_median_row_limit", max(1e-3, 3 * about["disagreement"]["max"])))


@cache
def goldens(variant: str) -> Goldens:
    at = folder(variant)
    return Goldens(load_file(at / "goldens.safetensors"), json.loads((at / "goldens.json").read_text()))


@cache
def model(variant: str, mode: str = "float32", backend: str = "cpu") -> V41Model:
    """The checkpoint as a user's launch would load it."""
    at = folder(variant)
    torch.set_num_threads(1)
    token_map = token_map_of(load_tokenizer(at))
    return load_v41(open_checkpoint(at), resolve_ops(backend, strict=True), None, mode, token_map)


def median_row(difference: Tensor) -> float:
    """The median over rows of the largest absolute entry."""
    return float(difference.abs().amax(-1).median())
