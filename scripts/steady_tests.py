"""pytest, and once more what failed: a test that passes then is named as unsteady, one that fails again fails.

    python scripts/steady_tests.py [arguments of pytest]

An unsteady test is a fault to be mended, of the test or of the product; it is never a reason to run everything again.
This must never turn a failure into silence: more than MOST failures, errors of collection and an interrupted run end
the run as pytest ended it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

MOST = 10  # more than this at once is no unsteadiness
FAILED = 1  # pytest's exit status when tests ran and some failed


def run(arguments: Sequence[str], cache: Path) -> int:
    """pytest's exit status. ``cache``: where it remembers what failed, for this run alone."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, "-o", f"cache_dir={cache}"], check=False
    ).returncode


def failures(cache: Path) -> list[str]:
    """Ids of the tests that failed in the latest run."""
    path = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(path.read_text())) if path.exists() else []


def main(arguments: Sequence[str]) -> int:
    """The exit status for the shell: 0 also when every failure was unsteady."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        status = run(arguments, cache)
        failed = failures(cache)
        if status != FAILED or not 0 < len(failed) <= MOST:
            return status
        print(f"\n{len(failed)} failed; once more, without the others:", *failed, sep="\n  ", flush=True)
        status = run([*arguments, "--last-failed", "--last-failed-no-failures=none"], cache)
        steady = failures(cache)
    for name in failed:
        words = "failed twice" if name in steady else "unsteady"
        print(f"{words}: {name}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
