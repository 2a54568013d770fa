"""No test reads what another stored: engines have a KV store only where a test gives them one."""

from __future__ import annotations

import os

os.environ["HEADRACE_KV_STORE"] = "off"  # also for the processes that tests start
