"""Who takes part in a comparison: an engine, the file it runs, and how precisely it computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.contract.errors import ConfigError

GIB = 1 << 30
OWN = "headrace"


@dataclass(frozen=True, slots=True)
class Contender:
    """``environment`` None: this package's own. ``file``: a kind of GGUF, or ``hf`` for the exported directory."""

    name: str
    runner: str
    environment: str | None
    file: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def own(self) -> bool:
        return self.environment is None


OWN_OPTIONS = {"kv_memory": GIB // 2}
CONTENDERS = tuple(
    [
        Contender("headrace Q4_1", "peer_headrace", None, "Q4_1", OWN_OPTIONS),
        Contender("headrace Q8_0", "peer_headrace", None, "Q8_0", OWN_OPTIONS),
        Contender("headrace fp32", "peer_headrace", None, "Q4_1", OWN_OPTIONS | {"dtype": "float32"}),
    ]
    + [Contender(f"llama.cpp {kind}", "peer_llama_cpp", "llama", kind) for kind in ("Q4_0", "Q4_1", "Q8_0")]
    + [
        Contender("OpenVINO Q8_0", "peer_openvino", "openvino", "Q8_0"),
        Contender("transformers fp32", "peer_transformers", "transformers", "Q4_1"),
        Contender("vLLM fp32", "peer_vllm", "vllm", "hf"),
    ]
)
EXACT = "headrace fp32"
"""Against whose perplexity the others' accuracy is held: the file's own weights, dequantised, in float32."""


def chosen(only: str | None) -> tuple[Contender, ...]:
    """Contenders with one of the comma-separated texts in their name; all for None. Raises ConfigError for no match."""
    if only is None:
        return CONTENDERS
    wanted = [text.strip().lower() for text in only.split(",")]
    for text in wanted:
        if not any(text in each.name.lower() for each in CONTENDERS):
            raise ConfigError("only", f"no contender has {text!r} in its name: {names(CONTENDERS)}")
    return tuple(each for each in CONTENDERS if any(text in each.name.lower() for text in wanted))


def names(contenders: Sequence[Contender]) -> str:
    return ", ".join(each.name for each in contenders)
