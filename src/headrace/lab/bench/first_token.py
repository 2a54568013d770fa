"""The child of ``startup``: loads a model, draws one token, and says on stdout how long each part took.

    python -m headrace.lab.bench.first_token STARTED_AT SETTINGS_JSON

``STARTED_AT`` is the monotonic clock when the process was started. Imports only what a user's script would.
"""

from __future__ import annotations

import json
import sys
from time import monotonic
from typing import Any


def main(started_at: float, settings: dict[str, Any]) -> None:
    before = monotonic()
    from headrace import LLM, SamplingParams

    llm_type = LLM  # the package loads lazily: naming it is what imports the engine
    imported = monotonic()
    llm = llm_type(**settings)
    loaded = monotonic()
    llm.generate("The capital of France is", SamplingParams(max_tokens=1, temperature=0.0))
    done = monotonic()
    print(
        json.dumps(
            {
                "total_s": done - started_at,
                "import_s": imported - before,
                "load_s": loaded - imported,
                "token_s": done - loaded,
                "torch": "torch" in sys.modules,
                "peak_rss_bytes": _peak_rss_bytes(),
            }
        )
    )


def _peak_rss_bytes() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


if __name__ == "__main__":
    main(float(sys.argv[1]), json.loads(sys.argv[2]))
