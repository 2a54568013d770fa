"""A pull in a process of its own, for tests that kill it: ``pull_process.py URL SHA256 FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.models.sources.download import Downloader, Meter, Remote
from headrace.models.sources.files import Checksum, locked
from headrace.models.sources.transport import Transport


def main(url: str, digest: str, folder: str) -> None:
    with locked(Path(folder) / "lock", "m", deadline_s=30):
        target = Path(folder) / "f"
        Downloader(Transport(), "m", Meter(None)).fetch(Remote(url, Checksum("sha256", digest)), target)


if __name__ == "__main__":
    main(*sys.argv[1:])
