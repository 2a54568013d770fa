"""How long what is stored stays, by the class of traffic that brought it: counted from the last use."""

from __future__ import annotations

from headrace.contract.request import KVClass

DAY_S = 86_400.0
CHAT, AGENT = 0, 1
BY_NAME: dict[KVClass, int] = {"chat": CHAT, "agent": AGENT}
TTL_S = {CHAT: 7 * DAY_S, AGENT: 3 * DAY_S}


def expired(ttl_class: int, used: float, now: float) -> bool:
    """Whether the class's time since the last use is over; at once for a class nobody knows."""
    return now - used > TTL_S.get(ttl_class, 0.0)
