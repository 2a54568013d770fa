"""A trained member as a user gets it: a directory in the released layout, and back into training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file
from torch import Tensor

from headrace.api.text.engram_map import engram_map
from headrace.api.text.tokenizer import load_tokenizer

from .text import CONTROL
from .weights import TrainedWeights

WEIGHTS = "model.safetensors"
# It was never taught to answer: a conversation is a text that it goes on with.
GOES_ON = "{% for message in messages %}{{ message.content }}{% if not loop.last %}{{ '\n' }}{% endif %}{% endfor %}"


def save_tokenizer(folder: Path, tokenizer: tokenizers.Tokenizer, length: int) -> None:
    """``tokenizer.json`` and its settings. ``length``: the longest input."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    begin, end, pad = CONTROL
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": begin,
        "eos_token": end,
        "pad_token": pad,
        "add_bos_token": True,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": length,
        "chat_template": GOES_ON,
    }
    _write(folder / "tokenizer_config.json", settings)


def save_model(folder: Path, config: dict[str, Any], weights: TrainedWeights) -> None:
    """The weights last and under their name at once: a reader finds an older model or this one."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "config.json", config)
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write(folder / "generation_config.json", {**ids, "do_sample": False})
    part = folder / f"{WEIGHTS}.part"
    save_file({name: tensor.contiguous() for name, tensor in weights.stored().items()}, part)
    part.replace(folder / WEIGHTS)


def token_map(folder: Path, vocab: int) -> Tensor:
    """Compressed ids (vocab,) int32 of the folder's tokenizer, as a server would make them."""
    ids = torch.from_numpy(engram_map(load_tokenizer(folder)))
    assert len(ids) == vocab, "the vocabulary was made for this configuration"
    return ids


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", "utf-8")
