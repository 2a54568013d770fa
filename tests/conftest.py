"""For every test: hidden waits inside a launch are errors, outputs are overwritten after their turn, and no test reads
what another stored: engines have a KV store only where a test gives them one."""

from __future__ import annotations

import os
import signal

# Before any engine starts; processes of tests inherit both.
os.environ.setdefault("HEADRACE_OVERLAP_CHECKS", "1")
os.environ["HEADRACE_KV_STORE"] = "off"

# Whoever starts tests in the background, or under nohup, ignores these, and so would every process that they start.
for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, default)
