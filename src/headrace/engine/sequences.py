"""How a sequence enters the core, from plain fields: those of a request, or those that a recording kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace._core import ExtraKeys, Scheduler


def add_sequence(core: Scheduler, seq_id: int, fields: dict[str, Any]) -> None:
    """Adds a sequence to the core from plain fields (also read back from a recording). Raises ValueError."""
    keys = ExtraKeys(adapter=fields.get("adapter", ""), salt=fields.get("salt", ""))
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
