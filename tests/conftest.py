"""For every test: hidden waits inside a launch are errors, and outputs are overwritten after their turn."""

from __future__ import annotations

import os

os.environ.setdefault("HEADRACE_OVERLAP_CHECKS", "1")  # before any engine starts; processes of tests inherit it
