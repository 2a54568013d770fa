"""A small BERT with drawn weights in sentence-transformers' layout, and its forward pass written a second time."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor

CONFIG: dict[str, Any] = {
    "architectures": ["BertModel"],
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "max_position_embeddings": 40,
    "vocab_size": 60,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz[]", "cab", "sea"]


def write_encoder(folder: Path, *, normalise: bool = True, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    known = CONFIG | config
    (folder / "config.json").write_text(json.dumps(known))
    save_file(weights(known), folder / "model.safetensors")
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalise else [])]
    modules = [{"type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(WORDS[:4])
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)])
    made.enable_truncation(8)
    made.enable_padding(length=8)
    return made


def weights(config: dict[str, Any]) -> dict[str, Tensor]:
    drawn = torch.Generator().manual_seed(7)
    hidden, inner = config["hidden_size"], config["intermediate_size"]

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=drawn) * 0.2

    out = {"embeddings.position_ids": torch.arange(config["max_position_embeddings"])[None]}
    tables = {"word": "vocab_size", "position": "max_position_embeddings", "token_type": "type_vocab_size"}
    for kind, rows in tables.items():
        out[f"embeddings.{kind}_embeddings.weight"] = some(config[rows], hidden)
    norms = ["embeddings.LayerNorm"]
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}."
        for part in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            out |= {f"{at}{part}.weight": some(hidden, hidden), f"{at}{part}.bias": some(hidden)}
        out |= {f"{at}intermediate.dense.weight": some(inner, hidden), f"{at}intermediate.dense.bias": some(inner)}
        out |= {f"{at}output.dense.weight": some(hidden, inner), f"{at}output.dense.bias": some(hidden)}
        norms += [f"{at}attention.output.LayerNorm", f"{at}output.LayerNorm"]
    for norm in norms:
        out |= {f"{norm}.weight": 1 + some(hidden), f"{norm}.bias": some(hidden)}
    return out | {"pooler.dense.weight": some(hidden, hidden), "pooler.dense.bias": some(hidden)}


def reference(w: dict[str, Tensor], config: dict[str, Any], ids: list[int]) -> Tensor:
    """The vector of ``ids`` in float64, from the formulas alone."""
    w = {name: value.double() for name, value in w.items()}
    heads, eps = config["num_attention_heads"], config["layer_norm_eps"]

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + eps)
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    tables = [f"embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type")]
    x = norm(w[tables[0]][ids] + w[tables[1]][: len(ids)] + w[tables[2]][0], "embeddings.LayerNorm")
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}."
        q, k, v = (linear(x, f"{at}attention.self.{name}").chunk(heads, -1) for name in ("query", "key", "value"))
        mixed = []
        for qh, kh, vh in zip(q, k, v):
            scores = torch.exp(qh @ kh.T / math.sqrt(qh.shape[1]))
            mixed.append(scores / scores.sum(-1, keepdim=True) @ vh)
        x = norm(x + linear(torch.cat(mixed, -1), f"{at}attention.output.dense"), f"{at}attention.output.LayerNorm")
        inner = linear(x, f"{at}intermediate.dense")
        inner = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
        x = norm(x + linear(inner, f"{at}output.dense"), f"{at}output.LayerNorm")
    mean = x.sum(0) / len(x)
    return mean / torch.sqrt((mean**2).sum())
