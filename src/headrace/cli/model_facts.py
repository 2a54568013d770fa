"""What a model on disk is made of, read from headers alone: no weight is loaded."""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from headrace.api.text.tokenizer import load_tokenizer
from headrace.contract.errors import ModelError, PullError
from headrace.contract.layout import KVGroup, KVLayout
from headrace.kv.keys import GRAIN
from headrace.kv.records import block_specs
from headrace.models.deepseek_v41.assembly import check
from headrace.models.deepseek_v41.config import ARCHITECTURE as V41
from headrace.models.deepseek_v41.records import kv_layout as record_layout
from headrace.models.deepseek_v41.tensor_table import FP4, SCALE
from headrace.models.dense.assembly import kv_layout, parameter_shapes
from headrace.models.dense.config import DenseConfig, derive
from headrace.models.registry import architectures
from headrace.models.sources import ModelSource, resolve_model
from headrace.models.weights import open_checkpoint
from headrace.models.weights.checkpoint import Checkpoint
from headrace.models.weights.gguf_header import read_header
from headrace.models.weights.hf_directory import HFDirectory

FLOAT_BYTES = 4  # KV is kept in float32


def model_facts(spec: str) -> dict[str, Any]:
    """Never fetches. Raises PullError for a model that is not here yet, ModelError for a broken one."""
    source = _local_source(spec)
    checkpoint = open_checkpoint(source.path, dummy_seed=0 if source.dummy else None)
    architecture = _architecture(checkpoint.source, checkpoint.config)
    own = _v41_facts(checkpoint) if architecture == V41 else _dense_facts(derive(architecture, checkpoint.config))
    tokenizer = None if source.tokenizer_path is None else load_tokenizer(source.tokenizer_path)
    return {
        "name": source.name,
        "path": str(source.path),
        "architecture": architecture,
        "formats": "no file (dummy weights)" if source.dummy else _formats(source.path),
        "size_bytes": sum(file.stat().st_size for file in _files(checkpoint, source)),
        **own,
        "tokenizer": None if tokenizer is None else _tokenizer(tokenizer),
    }


def _dense_facts(config: DenseConfig) -> dict[str, Any]:
    return {
        "num_parameters": sum(prod(shape) for shape in parameter_shapes(config).values()),
        "context_tokens": config.max_positions,
        "num_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "num_heads": config.num_heads,
        "vocab_size": config.vocab_size,
        "kv": _kv(config, kv_layout(config)),
    }


def _v41_facts(checkpoint: Checkpoint) -> dict[str, Any]:
    """Parameters are values, not bytes: two to a byte of experts, and no scales."""
    config, table = check(checkpoint)
    weights = [(stored.kind, prod(stored.shape)) for stored in table.values() if stored.kind != SCALE]
    layout = record_layout(config)
    groups = zip(layout.groups, layout.token_bytes, layout.fixed_bytes)
    return {
        "num_parameters": sum(2 * count if kind == FP4 else count for kind, count in weights),
        "context_tokens": config.max_positions,
        "num_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "num_heads": config.num_heads,
        "vocab_size": config.vocab_size,
        "kv": {
            "num_kv_heads": 1,
            "head_dim": config.head_dim,
            "bytes_per_token": sum(layout.token_bytes),
            "groups": [_described(group, per_token) | {"bytes_per_block": fixed} for group, per_token, fixed in groups],
            # Records have formats of their own, whatever the KV dtype.
            "records": {spec.kind.name.lower(): spec.bytes_per_grain for spec in block_specs(layout, GRAIN)},
        },
    }


def _local_source(spec: str) -> ModelSource:
    try:
        return resolve_model(spec, offline=True)
    except PullError as error:
        raise PullError(spec, f"is not on this machine yet; `headrace models pull {spec}` fetches it") from error


def _architecture(source: str, config: dict[str, Any]) -> str:
    named = config.get("architectures") or ["unknown"]
    if named[0] not in architectures():
        raise ModelError(f"{source}: architectures", f"{named[0]!r} is unknown; known: {', '.join(architectures())}")
    return str(named[0])


def _kv(config: DenseConfig, layout: KVLayout) -> dict[str, Any]:
    per_layer = 2 * layout.num_kv_heads * layout.head_dim * FLOAT_BYTES  # keys and values of one token
    return {
        "num_kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "bytes_per_token": per_layer * layout.num_layers,
        "groups": [_described(group, per_layer * len(group.layers)) for group in layout.groups],
    }


def _described(group: KVGroup, bytes_per_token: int) -> dict[str, Any]:
    return {
        "kind": group.kind.name.lower(),
        "window": group.window,
        "layers": ranges(group.layers),
        "bytes_per_token": bytes_per_token,
    }


def ranges(numbers: Sequence[int]) -> str:
    """``0-4, 6, 8-10`` for ascending numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _tokenizer(tokenizer: Any) -> dict[str, Any]:
    return {
        "vocab_size": tokenizer.vocab_size,
        "bos_id": tokenizer.bos_id,
        "eos_ids": list(tokenizer.eos_ids),
        "num_control_tokens": len(tokenizer.special_ids),
        "chat_template": tokenizer.chat_template is not None,
    }


def _formats(path: Path) -> str:
    """How many tensors a GGUF file stores in which format; ``safetensors`` for a directory."""
    if path.is_dir():
        return "safetensors"
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        kinds = Counter(info.kind.name for info in read_header(str(path), data).tensors.values())
    return "GGUF: " + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())


def _files(checkpoint: Checkpoint, source: ModelSource) -> Sequence[Path]:
    """What its weights are read from, whatever else lies in the folder."""
    if source.dummy:
        return ()
    return checkpoint.files if isinstance(checkpoint, HFDirectory) else (source.path,)
