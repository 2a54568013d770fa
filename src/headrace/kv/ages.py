"""How long what is stored stays, by the class of traffic that brought it: counted from the last use."""

from __future__ import annotations

from headrace.contract.request import KVClass

DAY_S = 86_400.0
CHAT, AGENT = 0, 1
BY_NAME: dict[KVClass, int] = {"chat": CHAT, "agent": AGENT}
CLOCK_SLACK_S = 60.0  # by which the machine's clock may be set back without anything being thought of it
TTL_S = {CHAT: 7 * DAY_S, AGENT: 3 * DAY_S}


def expired(ttl_class: int, used: float, now: float) -> bool:
    """Whether the class's time since the last use is over; at once for a class nobody knows."""
    return now - used > TTL_S.get(ttl_class, 0.0)


def last_use(used: float, now: float) -> float:
    """When a value was used, for the order in which values leave: a time that is still to come is of a clock that was
    wrong then, or is now, and says nothing. Such a value leaves first: else it would stay, and nothing new could."""
    return used if used <= now + CLOCK_SLACK_S else 0.0
