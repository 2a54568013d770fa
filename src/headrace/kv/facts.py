"""What a local store says of itself. Changes nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .local import LocalStore


def facts_of(store: LocalStore) -> dict[str, Any]:
    """Sizes and counts, for people and metrics."""
    rows, entries = store.index.all_segments(), store.index.all_entries()
    return {
        "folder": str(store.folder),
        "capacity_bytes": store.capacity_bytes,
        "file_bytes": sum(row.size for row in rows.values()),
        "value_bytes": sum(entry.length for _, entry in entries),
        "values": len(entries),
        "segments": len(rows),
        "policy": store.policy.name,
        "tenants": len({entry.tenant for _, entry in entries}),
        "name_spaces": len({entry.name_space for _, entry in entries}),
        **asdict(store.counts),
    }
