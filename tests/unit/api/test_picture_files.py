"""Picture files: what a viewer would show of them, and files that would cost a decoder more than their sides tell."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest

from headrace.api.picture_bounds import MOST_CHUNKS, MOST_SCANS, MOST_SEGMENTS
from headrace.api.picture_files import pixels_of, sides_of
from headrace.contract.errors import InvalidRequest

Image = pytest.importorskip("PIL.Image")


def noise(height: int, width: int) -> Any:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def encoded(image: Any, kind: str, **how: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **how)
    return file.getvalue()


def chunk(name: bytes, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + name + payload + struct.pack(">I", zlib.crc32(name + payload))


def shown(data: bytes) -> np.ndarray:
    """Pixels, whose sides must be those that the header told."""
    pixels = pixels_of(data, "images[0]")
    assert pixels.shape == (*sides_of(data, "images[0]"), 3)
    return pixels


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "PNG"])
@pytest.mark.parametrize(
    ("orientation", "corners"),  # stored: of the upright picture's corners 1 2 / 3 4, where each is kept
    [(1, "12/34"), (2, "21/43"), (3, "43/21"), (4, "34/12"), (5, "13/24"), (6, "24/13"), (7, "42/31"), (8, "31/42")],
)
def test_a_camera_s_pictures_are_seen_upright(kind: str, orientation: int, corners: str) -> None:
    shade = {"1": 0, "2": 80, "3": 160, "4": 240}
    height, width = (35, 28) if orientation > 4 else (28, 35)
    stored = np.array([[shade[c] for c in line] for line in corners.split("/")], np.uint8)
    exif = Image.Exif()
    exif[0x112] = orientation
    data = encoded(Image.fromarray(np.kron(stored, np.ones((height, width), np.uint8))), kind, exif=exif)
    seen = shown(data)[14::28, 17::35, 0].astype(int)
    assert np.abs(seen - [[0, 80], [160, 240]]).max() < 9


def test_late_and_broken_camera_data_turn_nothing() -> None:
    file, turned = encoded(noise(56, 70), "PNG"), b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    for before, payload in ((b"IEND", turned), (b"IDAT", turned[:6])):
        at = file.index(before) - 4
        assert shown(file[:at] + chunk(b"eXIf", payload) + file[at:]).shape == (56, 70, 3)


def test_greys_of_16_bits_keep_their_shades() -> None:
    ramp = np.linspace(0, 65535, 56 * 70).astype(np.uint16).reshape(56, 70)
    assert (shown(encoded(Image.fromarray(ramp), "PNG")) == (ramp >> 8)[..., None]).all()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(mode: str) -> None:
    """Black strokes on nothing, the nothing being stored as black too."""
    pixels = np.zeros((56, 70, 4), np.uint8)
    pixels[:28, :, 3] = 255
    image = Image.fromarray(pixels)
    data = encoded(image.quantize(4) if mode == "P" else image.convert(mode), "PNG")
    seen = shown(data)
    assert (seen[:28] == 0).all()
    assert (seen[28:] == 255).all()


def many_parts(kind: str) -> bytes:
    """A few hundred kilobytes that cost a decoder minutes, or for 16 bits hours of them, whatever the sides."""
    image = noise(56, 70)
    if kind == "chunks of a PNG":
        file = encoded(image, "PNG")
        return file[:33] + chunk(b"prVt", b"") * (MOST_CHUNKS + 1) + file[33:]
    if kind == "scans of a JPEG":
        file = encoded(image, "JPEG", progressive=True)
        scan = b"\xff\xda" + struct.pack(">HB", 8, 1) + b"\1\0\1\x3f\0"
        return file[:-2] + scan * (MOST_SCANS + 1) + file[-2:]
    file = encoded(image, "JPEG")
    segment = b"\xff\xe1" + struct.pack(">H", 9) + b"Exif\0\0x"
    return file[:2] + segment * (MOST_SEGMENTS + 1) + file[2:]


@pytest.mark.parametrize("kind", ["chunks of a PNG", "scans of a JPEG", "segments of a JPEG"])
def test_work_that_sides_do_not_tell_of_is_refused(kind: str) -> None:
    """Before the decoder sees it: each part costs it time, some by all that came before."""
    with pytest.raises(InvalidRequest, match=r"images\[0\]: cannot be decoded: has more than"):
        sides_of(many_parts(kind), "images[0]")


def test_parts_that_encoders_write_are_taken() -> None:
    image = noise(1400, 1400)
    exif = Image.Exif()
    exif[0x10E] = "\xff\xda" * 9_000  # looks like scans, and lies in a segment
    for how in ({"progressive": True}, {"restart_marker_rows": 1}, {"exif": exif, "icc_profile": bytes(1 << 20)}):
        assert sides_of(encoded(image, "JPEG", **how), "images[0]") == (1400, 1400)
