"""How long what is stored stays, by the class of traffic that brought it: counted from the last use."""

from __future__ import annotations

from .index import Entry

DAY_S = 86_400.0
CHAT, AGENT = 0, 1
TTL_S = {CHAT: 7 * DAY_S, AGENT: 3 * DAY_S}


def expired(entry: Entry, now: float) -> bool:
    """Whether its class's time is over; at once for a class nobody knows."""
    return now - entry.used > TTL_S.get(entry.ttl_class, 0.0)
