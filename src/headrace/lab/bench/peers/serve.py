"""The program of every runner: reads one JSON object per line, has the peer do it, answers with one line.

    python serve.py peer_NAME

A request is ``{"do": METHOD, ...arguments}``; the answer is the method's dict, or ``{"error": TEXT}``, and always has
``peak_rss_bytes``. Whatever the engine prints goes to stderr: stdout belongs to the answers alone.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import traceback
from typing import Any

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    # A stopped process never sees that its input has ended: it must not outlive whoever stopped it.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer = importlib.import_module(sys.argv[1]).Peer()
    for line in sys.stdin:
        reply = answer(peer, json.loads(line))
        reply["peak_rss_bytes"] = peak_rss_bytes()
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


def answer(peer: object, request: dict[str, Any]) -> dict[str, Any]:
    """The method's dict, or what went wrong. Nothing a peer raises ends the program."""
    name = request.pop("do")
    method = getattr(peer, name, None)
    if method is None:
        return {"error": f"this engine's runner cannot {name}"}
    try:
        return dict(method(**request))
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def peak_rss_bytes() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


if __name__ == "__main__":
    main()
