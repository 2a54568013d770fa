"""Headrace: a language-model inference engine in Python with a C++ core.

The names below load on first use: importing the package costs nothing and never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api.async_llm import AsyncLLM
    from .api.llm import LLM
    from .config import EngineConfig
    from .contract.request import SamplingParams, StructuredOutputs

__version__ = "0.1.0"
__all__ = ["LLM", "AsyncLLM", "EngineConfig", "SamplingParams", "StructuredOutputs"]

_HOMES = {
    "LLM": "api.llm",
    "AsyncLLM": "api.async_llm",
    "EngineConfig": "config",
    "SamplingParams": "contract.request",
    "StructuredOutputs": "contract.request",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value  # from now on found without this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
