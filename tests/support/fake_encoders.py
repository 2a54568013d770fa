"""What an encoder's process runs in tests: rows are the pixels; some pictures kill it, fail, or wait for a signal."""

from __future__ import annotations

import os
import time
from pathlib import Path

from headrace.contract.errors import EngineDead, WorkerError
from headrace.contract.picture import Picture, picture_id
from headrace.engine.encoder_child import Encode

LONGEST_S = 120.0


def picture(pixels: bytes) -> Picture:
    return Picture(start=1, kinds=b"\0\1\3", grid=(1, 1), pixels=pixels, id=picture_id((1, 1), pixels))


def build(folder: str) -> Encode:
    """``fatal`` kills the process, ``bad`` cannot be encoded, ``once`` waits to be killed where it comes first."""
    if folder == "nowhere":
        raise EngineDead("no such model")
    place = Path(folder)

    def encode(shown: Picture) -> bytes:
        with (place / "log").open("ab") as log:
            log.write(shown.pixels + b"\n")
        if shown.pixels == b"fatal":
            os._exit(3)
        if shown.pixels == b"bad":
            raise WorkerError("a picture of nothing")
        if shown.pixels == b"once" and (place / "log").read_bytes().count(b"once") == 1:
            time.sleep(LONGEST_S)
        return shown.pixels

    return encode


def asked(folder: Path) -> list[bytes]:
    """The pictures that were shown to the encoder, its successors included."""
    log = folder / "log"
    return log.read_bytes().split() if log.exists() else []
