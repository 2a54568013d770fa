"""A tiny model that reads and writes text: dummy weights, one token per byte, a chat template. And ways to run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROL = ["<|end|>", "<|user|>", "<|answer|>"]
TEMPLATE = (
    "{% for m in messages %}{{ '<|user|>' if m.role == 'user' else '<|answer|>' }}{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|answer|>{% endif %}"
)
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 272,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
SMALL = ["--kv-memory", "4MiB", "--threads", "1"]


def write_model(folder: Path, *, text: bool = True, template: bool = True, **config: Any) -> str:
    """Writes the model; returns the name to give to ``--model``. Without ``text`` it has no tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    if text:
        byte_tokenizer().save(str(folder / "tokenizer.json"))
        settings = {"eos_token": "<|end|>"} | ({"chat_template": TEMPLATE} if template else {})
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return f"dummy:{folder / 'config.json'}"


def byte_tokenizer(merges: Sequence[tuple[str, str]] = ()) -> Tokenizer:
    """One id per byte, one per merge, then the control tokens."""
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    return tokenizer


def start(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """``headrace ARGUMENTS`` as a process of its own."""
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen([sys.executable, "-m", "headrace", *arguments], env=environment, **pipes)


def records(path: Path) -> list[dict[str, Any]]:
    """The whole records of an output file."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
