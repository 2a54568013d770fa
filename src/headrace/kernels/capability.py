"""What each backend's attention can be captured into. A step graph never exceeds it; a downgrade is reported."""

from __future__ import annotations

from headrace.contract.plan import GraphMode

ATTENTION_CAPTURE: dict[str, GraphMode] = {
    "cpu": GraphMode.FULL,  # block tables and lengths are read at replay, whatever the mix of slices
    "reference": GraphMode.NONE,  # torch calls; nothing is recorded
}


def attention_capture(backend: str) -> GraphMode:
    """The best mode of a backend; NONE for one that is not in the table."""
    return ATTENTION_CAPTURE.get(backend, GraphMode.NONE)
