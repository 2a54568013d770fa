"""How hard a model is to think: as bodies ask for it, and by which names templates and codecs know it."""

from __future__ import annotations

from typing import Any

from headrace.contract.errors import InvalidRequest

NO_EFFORT = "none"
EFFORTS = (NO_EFFORT, "minimal", "low", "medium", "high", "xhigh", "max")


def effort_variables(effort: str | None, field: str) -> dict[str, Any]:
    """Names for the template; none where nothing is asked. Raises InvalidRequest, naming ``field``, for a word that
    is no effort."""
    if effort is None:
        return {}
    if effort not in EFFORTS:
        raise InvalidRequest(field, f"must be one of {', '.join(EFFORTS)}, got {effort!r}")
    return told_effort(effort)


def told_effort(effort: str) -> dict[str, Any]:
    """No effort at all is also the switch that most templates know instead."""
    return {"reasoning_effort": effort} | ({"enable_thinking": False} if effort == NO_EFFORT else {})
