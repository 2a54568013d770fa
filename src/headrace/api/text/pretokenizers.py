"""How each kind of byte-level BPE cuts text into words before merging.

GGUF files name the kind (``tokenizer.ggml.pre``) instead of storing its rule, so the rules live here. An
unknown kind is an error, never a guess: a wrong cut gives plausible but wrong ids.
"""

from __future__ import annotations

from tokenizers import Regex
from tokenizers import pre_tokenizers as pre

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTION + WORDS % r"\p{N}{1,3}"
QWEN2 = CONTRACTION + WORDS % r"\p{N}"

RULES: dict[str, tuple[str, ...]] = {
    "gpt2": (GPT2,),
    "digits": (r"\p{N}", GPT2),
    "llama3": (LLAMA3,),
    "qwen2": (QWEN2,),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
}
"""Regular expressions applied one after the other; each isolates its matches."""

KINDS: dict[str, str] = {
    "default": "default",
    "gpt-2": "gpt2",
    "mpt": "gpt2",
    "olmo": "gpt2",
    "phi-2": "gpt2",
    "smollm": "digits",
    "starcoder": "digits",
    "refact": "digits",
    "command-r": "digits",
    "llama-bpe": "llama3",
    "llama3": "llama3",
    "llama-v3": "llama3",
    "qwen2": "qwen2",
    "deepseek-r1-qwen": "qwen2",
}
"""GGUF name of a kind -> row of ``RULES``."""


def byte_level(kind: str) -> pre.PreTokenizer:
    """The pre-tokenizer of a GGUF kind. Raises KeyError for a kind that has no row."""
    steps = [pre.Split(Regex(rule), "isolated") for rule in RULES[KINDS[kind]]]
    return pre.Sequence([*steps, pre.ByteLevel(add_prefix_space=False, use_regex=False)])
