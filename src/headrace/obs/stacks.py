"""Where a process spends its time: the stacks of its Python threads, looked at many times a second.

Stacks name code, never data. A call into C++ shows as the Python function that made it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from types import FrameType

PERIOD_S = 0.005
MAX_S = 60.0


def sample(seconds: float) -> Counter[str]:
    """How often each stack was seen, root first, over all threads but this one. At most ``MAX_S`` long."""
    stacks: Counter[str] = Counter()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own, end = threading.get_ident(), time.monotonic() + min(seconds, MAX_S)
    while time.monotonic() < end:
        for ident, frame in sys._current_frames().items():
            if ident != own:
                stacks[f"{names.get(ident, 'thread')};{_stack(frame)}"] += 1
        time.sleep(PERIOD_S)
    return stacks


def _stack(frame: FrameType | None) -> str:
    calls = []
    while frame is not None:
        code = frame.f_code
        calls.append(f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_qualname}")
        frame = frame.f_back
    return ";".join(reversed(calls))
