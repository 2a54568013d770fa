"""Picture files as callers give them: sides from the header alone, and pixels. Opens no path and no address.

A few hundred bytes can stand for gigabytes of pixels. So sides are read, and bounded, before anything is decoded; and
whatever a decoder says of bytes that somebody sent is that one's error, never the server's.

Pixels are what a viewer shows: turned as a camera's EXIF data ask, 16-bit greys scaled to 8, on white where a picture
is transparent.
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

from .picture_bounds import check_parts

MOST_SIDE = 1 << 14  # pixels
MOST_PIXELS = 1 << 25  # of one picture: 96 MiB decoded
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
ORIENTATION = 0x0112  # EXIF's number for how a camera was held; values as in its standard, 1: upright
# Pillow's names of what makes a picture upright again.
TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
ON_ITS_SIDE = (5, 6, 7, 8)
WHITE = (255, 255, 255)


def sides_of(given: Any, field: str) -> tuple[int, int]:
    """Height and width of an encoded file, by its header, or of a (height, width, 3) array of uint8.

    Raises InvalidRequest naming ``field``."""
    if isinstance(given, bytes | bytearray):
        with _opened(given, field) as picture:
            width, height = picture.size if _orientation(picture) not in ON_ITS_SIDE else picture.size[::-1]
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
        return _shown(picture)


def _shown(picture: Any) -> NDArray[np.uint8]:
    from PIL import Image

    turn = TURNS.get(_orientation(picture))  # before it is loaded: what stands behind the pixels is not asked
    if picture.mode.startswith("I;16"):  # Pillow would cut greys off at 255
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    elif "A" in picture.mode or "a" in picture.mode or "transparency" in picture.info:
        clear = picture.convert("RGBA")
        picture = Image.new("RGB", clear.size, WHITE)
        picture.paste(clear, mask=clear.getchannel("A"))
    shown = picture.convert("RGB")
    return np.asarray(shown if turn is None else shown.transpose(Image.Transpose[turn]))


def _orientation(picture: Any) -> int:
    """By the header alone. Data that cannot be read turn nothing."""
    if "exif" not in picture.info:
        return 1
    try:
        found = picture.getexif().get(ORIENTATION)
    except Exception:
        return 1
    return found if isinstance(found, int) else 1


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
    check_parts(data, field)
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            yield picture
    except UnidentifiedImageError as error:
        raise InvalidRequest(field, f"is no picture in one of the formats {', '.join(FORMATS)}") from error
    except MemoryError:
        raise  # this one is ours
    except Exception as error:
        raise InvalidRequest(field, f"cannot be decoded: {error}") from error
