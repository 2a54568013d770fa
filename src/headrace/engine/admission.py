"""From a request to a sequence of the core: its fields as plain values, which a recording keeps, and the call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace._core import ExtraKeys, Scheduler
from headrace.contract.request import Request


def sequence_fields(request: Request, outputs: Sequence[int] = ()) -> dict[str, Any]:
    """What the core must know of a request. ``outputs``: tokens drawn where its prompt was computed."""
    sampling = request.sampling
    fields = {
        "prompt": request.prompt_token_ids,
        "max_tokens": sampling.max_tokens if sampling.max_tokens is not None else 2**31 - 1,
        "min_tokens": sampling.min_tokens,
        "eos_ids": list(request.eos_ids),
        "stop_ids": list(sampling.stop_token_ids or ()),
        "ignore_eos": sampling.ignore_eos,
        "reads_cache": sampling.prompt_logprobs is None,
        "priority": request.priority,
        "arrival": request.arrival,
        "salt": request.cache_salt,
        "adapter": request.adapter,
    }
    if request.pictures:
        fields["media"] = [(p.id, p.start, len(p.kinds)) for p in request.pictures]
    return fields | ({"outputs": list(outputs)} if outputs else {})


def add_sequence(core: Scheduler, seq_id: int, fields: dict[str, Any]) -> None:
    """Adds a sequence to the core from plain fields (also read back from a recording). Raises ValueError."""
    keys = ExtraKeys(adapter=fields.get("adapter", ""), salt=fields.get("salt", ""), media=fields.get("media", []))
    core.add(
        seq_id,
        np.asarray(fields["prompt"], dtype=np.int32),
        max_tokens=fields["max_tokens"],
        min_tokens=fields["min_tokens"],
        eos_ids=fields["eos_ids"],
        stop_ids=fields["stop_ids"],
        ignore_eos=fields["ignore_eos"],
        reads_cache=fields["reads_cache"],
        priority=fields["priority"],
        arrival=fields["arrival"],
        keys=keys,
        outputs=fields.get("outputs", []),
        checkpoints=fields.get("checkpoints", []),
    )
