"""Picture files as callers give them: sides from the header alone, and pixels. Opens no path and no address.

A few hundred bytes can stand for gigabytes of pixels. So sides are read, and bounded, before anything is decoded; and
whatever a decoder says of bytes that somebody sent is that one's error, never the server's.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.contract.errors import InvalidRequest
from headrace.contract.extras import how_to_get

MOST_SIDE = 1 << 14  # pixels
MOST_PIXELS = 1 << 25  # of one picture: 96 MiB decoded
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")


def sides_of(given: Any, field: str) -> tuple[int, int]:
    """Height and width of an encoded file, by its header, or of a (height, width, 3) array of uint8.

    Raises InvalidRequest naming ``field``."""
    if isinstance(given, bytes | bytearray):
        with _opened(given, field) as picture:
            width, height = picture.size
        _check_sides(height, width, field)
        return height, width
    if not isinstance(given, np.ndarray) or given.dtype != np.uint8 or given.ndim != 3 or given.shape[2] != 3:
        got = f"{given.dtype} of shape {given.shape}" if isinstance(given, np.ndarray) else type(given).__name__
        forms = 'an encoded picture\'s bytes (open(path, "rb").read()) or a (height, width, 3) array of uint8'
        raise InvalidRequest(field, f"must be {forms}, got {got}")
    height, width = given.shape[:2]
    _check_sides(height, width, field)
    return height, width


def pixels_of(given: Any, field: str) -> NDArray[np.uint8]:
    """(height, width, 3) of what ``sides_of`` has taken. Raises InvalidRequest where it cannot be decoded."""
    if isinstance(given, np.ndarray):
        return given
    with _opened(given, field) as picture:
        return np.asarray(picture.convert("RGB"))


def _check_sides(height: int, width: int, field: str) -> None:
    if min(height, width) < 1 or max(height, width) > MOST_SIDE or width * height > MOST_PIXELS:
        most = f"sides of 1 to {MOST_SIDE} pixels are read, {MOST_PIXELS} pixels in all"
        raise InvalidRequest(field, f"has {width} x {height} pixels; {most}")


@contextmanager
def _opened(data: bytes | bytearray, field: str) -> Iterator[Any]:
    """The file, with nothing but its header read. What is raised while it is open comes from the decoder, of many
    kinds: what lies late in a file is parsed late."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise InvalidRequest(field, f"encoded pictures need pillow: {how_to_get('pictures')}") from error
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            yield picture
    except UnidentifiedImageError as error:
        raise InvalidRequest(field, f"is no picture in one of the formats {', '.join(FORMATS)}") from error
    except MemoryError:
        raise  # this one is ours
    except Exception as error:
        raise InvalidRequest(field, f"cannot be decoded: {error}") from error
