"""What a local store says of itself, from what the index counts: it is asked again and again while it serves, so
nothing is listed for it. Changes nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .local import LocalStore


def facts_of(store: LocalStore) -> dict[str, Any]:
    """Sizes and counts, for people and metrics."""
    rows, totals = store.index.all_segments(), store.index.totals()
    return {
        "folder": str(store.folder),
        "capacity_bytes": store.capacity_bytes,
        "file_bytes": sum(row.size for row in rows.values()),
        "value_bytes": totals.value_bytes,
        "values": totals.values,
        "segments": len(rows),
        "policy": store.policy.name,
        "tenants": totals.tenants,
        "name_spaces": totals.name_spaces,
        **asdict(store.counts),
    }
