"""Pictures in front of the engine: sizes, lines of cells, place holders, and what is refused by name."""

from __future__ import annotations

import io
import struct
import zlib
from itertools import product
from typing import Any

import numpy as np
import pytest

from headrace.api.pictures import cells_of, expand, expanded_ids, head_of, num_rows, prepare_picture, size_for
from headrace.contract.errors import InvalidRequest
from headrace.contract.picture import END, IMAGE, NEWLINE, START, Eyes, Picture, with_pictures

RELEASED = Eyes(token_id=9, patch=14, downsample=3, max_tokens=1024, min_pixels=295_936, max_wh_ratio=None)
SMALL = Eyes(token_id=9, patch=14, downsample=3, max_tokens=64, min_pixels=3136, max_wh_ratio=None)


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def read(given: Any, start: int = 0) -> Picture:
    return prepare_picture(SMALL, head_of(SMALL, given, "images[0]"), start)


def png(pixels: np.ndarray) -> bytes:
    image, file = pytest.importorskip("PIL.Image"), io.BytesIO()
    image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("width", "height", "grid"),
    [
        (560, 560, (40, 40)),  # as it is: a multiple of the patch, large enough, small enough
        (561, 560, (40, 41)),  # rounded up
        (56, 56, (39, 39)),  # too few pixels: 544 x 544, rounded up
        (4000, 3000, (81, 108)),  # too many cells: 36 across, 27 down at most
    ],
)
def test_grids_of_the_released_rules(width: int, height: int, grid: tuple[int, int]) -> None:
    assert size_for(RELEASED, width, height).grid == grid


@pytest.mark.parametrize(("width", "height"), [(1, 9000), (9000, 1), (4000, 3000), (13, 17), (16000, 16000), (30, 400)])
@pytest.mark.parametrize("eyes", [RELEASED, SMALL])
def test_no_shape_has_more_rows_than_are_allowed(eyes: Eyes, width: int, height: int) -> None:
    grid = size_for(eyes, width, height).grid
    assert min(grid) >= 1
    assert num_rows(cells_of(eyes, grid)) <= eyes.max_tokens


def test_a_wide_picture_is_clipped_and_stretched() -> None:
    eyes = Eyes(token_id=9, patch=14, downsample=3, max_tokens=1024, min_pixels=1, max_wh_ratio=2.0)
    assert size_for(eyes, 1000, 100) == size_for(eyes, 200, 100).__class__((8, 15), True)


def test_rows_pixels_and_grey() -> None:
    picture = read(noise(60, 100), 5)
    assert picture.grid == (5, 8)
    assert list(picture.kinds) == [START, *[IMAGE] * 3, NEWLINE, *[IMAGE] * 3, NEWLINE, END]
    assert picture.end == 5 + 10
    shown = np.frombuffer(picture.pixels, np.uint8).reshape(70, 112, 3)
    assert (shown[:2] == 127).all()  # a picture of another shape than the grid leaves a margin
    assert (shown[-1:] == 127).all()
    assert not (shown[2:-1] == 127).all(axis=(1, 2)).any()


def test_a_picture_that_fits_is_not_touched() -> None:
    given = noise(56, 70)
    assert read(given).pixels == given.tobytes()


def test_files_are_decoded() -> None:
    assert read(png(noise(56, 70))).id == read(noise(56, 70), 3).id


def test_place_holders_grow_into_rows() -> None:
    ids, pictures = expand(SMALL, [1, 9, 2, 9, 3], [noise(56, 70), noise(60, 100)])
    first, second = (len(p.kinds) for p in pictures)
    assert ids == [1, *[9] * first, 2, *[9] * second, 3]
    assert [p.start for p in pictures] == [1, 2 + first]
    assert pictures[0].id != pictures[1].id


def test_salts_tell_pictures_and_their_places_apart() -> None:
    [one], [two] = (expand(SMALL, [9], [noise(56, 70, seed)])[1] for seed in (1, 2))
    _, moved = expand(SMALL, [1, 9], [noise(56, 70, 1)])
    salts = {with_pictures("s", pictures) for pictures in ((), (one,), (two,), moved)}
    assert len(salts) == 4
    assert with_pictures("s", ()) == "s"


@pytest.mark.parametrize(
    ("eyes", "given", "words"),
    [
        (None, [noise(56, 70)], "no eyes"),
        (SMALL, [], "0 pictures for 1 place"),
        (SMALL, [noise(56, 70)] * 2, "2 pictures for 1 place"),
        (SMALL, "picture.png", "list of pictures"),
        (SMALL, [b"no picture"], r"images\[0\].*no picture in one of"),
        (SMALL, [np.zeros((4, 4))], r"images\[0\].*uint8"),
        (SMALL, [np.zeros((0, 4, 3), np.uint8)], r"images\[0\].*sides"),
        (SMALL, [noise(56, 70)] * 65, "at most 64"),
    ],
)
def test_what_is_refused(eyes: Eyes | None, given: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        expand(eyes, [1, 9], given)


def test_nothing_is_decoded_before_the_prompt_is_known_to_fit() -> None:
    """The first bytes tell the sides; what follows here cannot be decoded."""
    cut = png(noise(56, 70))[:80]
    lengths: list[int] = []

    def refuse(length: int) -> None:
        lengths.append(length)
        raise InvalidRequest("prompt", "too long")

    with pytest.raises(InvalidRequest, match="too long"):
        expand(SMALL, [1, 9], [cut], check=refuse)
    assert lengths == [len(expanded_ids(SMALL, [1, 9], [cut]))] == [1 + num_rows((2, 2))]
    with pytest.raises(InvalidRequest, match=r"images\[0\].*cannot be decoded"):
        expand(SMALL, [1, 9], [cut])


def test_pixels_of_all_pictures_are_bounded_together() -> None:
    """Nobody can decode these: they are refused by their sides."""
    vast = np.broadcast_to(np.zeros((1, 1, 3), np.uint8), (1 << 12, 1 << 13, 3))
    assert len(expanded_ids(SMALL, [9, 9], [vast] * 2)) > 2
    with pytest.raises(InvalidRequest, match=r"images\[2\].*with the pictures before it"):
        expand(SMALL, [9, 9, 9], [vast] * 3)
    with pytest.raises(InvalidRequest, match=r"images\[0\].*pixels in all"):
        expand(SMALL, [9], [np.broadcast_to(vast[:1], ((1 << 12) + 1, 1 << 13, 3))])


CHUNKS = [b"cHRM", b"pHYs", b"gAMA", b"sRGB", b"iCCP", b"iTXt", b"zTXt", b"eXIf", b"fcTL", b"tRNS", b"PLTE"]


def with_chunk(name: bytes, payload: bytes, *, late: bool) -> bytes:
    """A PNG with one more chunk, before its pixels or behind them."""
    file, body = png(noise(56, 70)), name + payload
    at = file.index(b"IEND" if late else b"IDAT") - 4
    return file[:at] + struct.pack(">I", len(payload)) + body + struct.pack(">I", zlib.crc32(body)) + file[at:]


def test_whatever_a_decoder_says_is_the_caller_s_error() -> None:
    refused: list[InvalidRequest] = []
    for name, payload, late in product(CHUNKS, (b"", b"\0", b"a\0\0\0", b"\xff" * 26), (False, True)):
        try:
            read(with_chunk(name, payload, late=late))
        except InvalidRequest as error:
            refused.append(error)
    assert refused, "every file could be read, so nothing was shown"
    assert {error.field for error in refused} == {"images[0]"}
