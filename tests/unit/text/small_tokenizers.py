"""Small tokenizers made on the spot, one per family, so that tests need no checkpoint."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from headrace.api.text.pieces import ALPHABET

CONTROL_TOKENS = ["<|bos|>", "<|eos|>", "<|turn|>", "<unk>"]
SPM_CONTROL = ["<pad>", "<eos>", "<bos>", "<unk>", "<turn>"]


def write_gguf(path: Path, pairs: dict[str, Any], *, version: int = 3) -> Path:
    """A GGUF file with a header and no tensors."""
    body = b"".join(_text(key) + _value(value) for key, value in pairs.items())
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, 0, len(pairs)) + body)
    return path


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    kind, code = (6, "f") if isinstance(value[0], float) else (5, "i")
    return struct.pack(f"<IIQ{len(value)}{code}", 9, kind, len(value), *value)


def byte_level_pairs(**extra: Any) -> dict[str, Any]:
    """Header of a byte-level BPE: control tokens, 256 bytes, a few merges."""
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o", "r l", "Ġwo rl", "Ġworl d"]
    tokens = [*CONTROL_TOKENS, *ALPHABET, *(merge.replace(" ", "") for merge in merges)]
    control = len(CONTROL_TOKENS)
    pairs = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "token_type": [3] * control + [1] * (len(tokens) - control),
        "merges": merges,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "add_bos_token": True,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (pairs | extra).items()}


def sentencepiece_pairs(**extra: Any) -> dict[str, Any]:
    """Header of a SentencePiece BPE whose ordinary pieces could merge into ``<turn>``, a control token."""
    words = ["▁", "he", "hel", "lo", "hello", "▁hello", "<t", "<tu", "rn", "rn>"]
    tokens = [*SPM_CONTROL, *(f"<0x{byte:02X}>" for byte in range(256)), *words, *"helo<turn>"]
    tokens = list(dict.fromkeys(tokens))
    controls = len(SPM_CONTROL)
    types = [3] * controls + [6] * 256 + [1] * (len(tokens) - controls - 256)
    pairs = {
        "model": "llama",
        "tokens": tokens,
        "token_type": types,
        "scores": [-float(i) for i in range(len(tokens))],
        "bos_token_id": 2,
        "eos_token_id": 1,
        "unknown_token_id": 3,
        "add_space_prefix": False,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (pairs | extra).items()}


def write_directory(path: Path, tokenizer_json: str, **files: dict[str, Any]) -> Path:
    """A Hugging Face directory; keyword ``generation_config={...}`` writes ``generation_config.json``."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "tokenizer.json").write_text(tokenizer_json, "utf-8")
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content), "utf-8")
    return path
