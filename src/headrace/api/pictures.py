"""Pictures as callers give them become what a prompt holds: decoded, brought to a size the model reads, laid out.

A picture is one or more lines of cells, each followed by an end of line, between a beginning and an end. Sizes follow
the rules the model was trained with: a picture that is too small or too large is scaled, its shape kept, and centred on
grey.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.config import EngineConfig
from headrace.contract.errors import ConfigError, InvalidRequest
from headrace.contract.extras import how_to_get
from headrace.contract.picture import END, IMAGE, NEWLINE, START, Eyes, Picture, picture_id

from .text.tokenizer import Tokenizer

GREY = 127
MOST_SIDE = 1 << 14  # pixels: more is refused before anything is decoded into memory twice
MOST_PIXELS = 1 << 25  # 96 MiB decoded
MOST_PICTURES = 64
PLACE_HOLDERS = ("<image>", "<｜deepseek_image｜>")
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")


class NamedPicture(NamedTuple):
    """An encoded file's bytes, and the field that errors about it name."""

    field: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Sized:
    """``grid``: patches down and across. ``stretched``: the shape was clipped and is not kept."""

    grid: tuple[int, int]
    stretched: bool


def cells_of(eyes: Eyes, grid: tuple[int, int]) -> tuple[int, int]:
    down, across = (-(-side // eyes.downsample) for side in grid)
    return down, across


def num_rows(cells: tuple[int, int]) -> int:
    """Rows of a prompt: lines of cells with their ends, a beginning and an end."""
    return cells[0] * (cells[1] + 1) + 2


def size_for(eyes: Eyes, width: int, height: int) -> Sized:
    """The grid a picture of these sides is read in."""
    w, h, stretched = float(width), float(height), False
    if eyes.max_wh_ratio is not None and w > h * eyes.max_wh_ratio:
        w, stretched = h * eyes.max_wh_ratio, True
    if w * h < eyes.min_pixels:
        scale = math.sqrt(eyes.min_pixels / (w * h))
        w, h = float(int(w * scale)), float(int(h * scale))
    grid = (max(1, math.ceil(h / eyes.patch)), max(1, math.ceil(w / eyes.patch)))
    if num_rows(cells_of(eyes, grid)) > eyes.max_tokens:
        grid = _largest_grid(eyes, w, h)
    return Sized(grid, stretched)


def _largest_grid(eyes: Eyes, w: float, h: float) -> tuple[int, int]:
    """Of the same shape, with as many cells as are allowed; a very long picture gets one line or column."""
    ratio, cell = h / w, eyes.patch * eyes.downsample
    across = math.sqrt((eyes.max_tokens - 2) / ratio + 0.25) - 0.5
    down = ratio * across
    if across < 1:
        return (eyes.max_tokens - 2) // 2 * eyes.downsample, eyes.downsample
    if down < 1:
        return eyes.downsample, (eyes.max_tokens - 3) * eyes.downsample
    scale = min(math.floor(across) * cell / w, math.floor(down) * cell / h)
    return max(1, math.floor(h * scale / eyes.patch)), max(1, math.floor(w * scale / eyes.patch))


def most_rows(config: EngineConfig) -> int | None:
    """Rows that a picture may have: engines that plan prompts apart never cut one, so it must fit a step. None: any."""
    limits = config.scheduler
    if limits.discipline == "mixed":
        return None
    return min(limits.token_budget, limits.long_prefill_threshold or limits.token_budget)


def check_place_holder(eyes: Eyes | None, tokenizer: Tokenizer | None) -> None:
    """A model and its tokenizer must mean the same token by a picture. Raises ConfigError."""
    if eyes is None or tokenizer is None:
        return
    for name in PLACE_HOLDERS:
        ids = tokenizer.encode(name, add_special=False)
        if len(ids) == 1 and ids[0] != eyes.token_id:
            raise ConfigError("image_token_id", f"{eyes.token_id}, but the tokenizer has {ids[0]} for {name}")


def prepare_picture(eyes: Eyes, given: Any, start: int, field: str, most: int | None = None) -> Picture:
    """``given``: (height, width, 3) uint8, an encoded file's bytes, or these with a field of their own. ``most``: rows
    that it may have.

    Raises InvalidRequest naming the field."""
    if isinstance(given, NamedPicture):
        field, given = given
    rgb = _decoded(given, field)
    sized = size_for(eyes, rgb.shape[1], rgb.shape[0])
    down, across = cells_of(eyes, sized.grid)
    rows = num_rows((down, across))
    if most is not None and rows > most:
        words = f"takes {rows} rows of the prompt; this engine cuts no picture, and a step has {most} (token_budget)"
        raise InvalidRequest(field, words)
    pixels = _resized(rgb, sized, eyes.patch).tobytes()
    line = bytes([IMAGE] * across + [NEWLINE])
    kinds = bytes([START]) + line * down + bytes([END])
    return Picture(start=start, kinds=kinds, grid=sized.grid, pixels=pixels, id=picture_id(sized.grid, pixels))


def _decoded(given: Any, field: str) -> NDArray[np.uint8]:
    if isinstance(given, bytes | bytearray):
        given = _from_file(bytes(given), field)
    if not isinstance(given, np.ndarray) or given.dtype != np.uint8 or given.ndim != 3 or given.shape[2] != 3:
        raise InvalidRequest(field, "must be an encoded picture's bytes, or a (height, width, 3) array of uint8")
    if min(given.shape) < 1 or max(given.shape) > MOST_SIDE:
        raise InvalidRequest(field, f"has sides {given.shape[:2]}; 1 to {MOST_SIDE} pixels are read")
    return given


def _from_file(data: bytes, field: str) -> NDArray[np.uint8]:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise InvalidRequest(field, f"encoded pictures need pillow: {how_to_get('pictures')}") from error
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            width, height = picture.size
            if max(width, height) > MOST_SIDE or width * height > MOST_PIXELS:
                most = f"sides of 1 to {MOST_SIDE} pixels are read, {MOST_PIXELS} pixels in all"
                raise InvalidRequest(field, f"has {width} x {height} pixels; {most}")
            return np.asarray(picture.convert("RGB"))
    except UnidentifiedImageError as error:
        raise InvalidRequest(field, f"is no picture in one of the formats {', '.join(FORMATS)}") from error
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise InvalidRequest(field, f"cannot be decoded: {error}") from error


def _resized(rgb: NDArray[np.uint8], sized: Sized, patch: int) -> NDArray[np.uint8]:
    """(grid x patch, 3): the picture as large as fits, centred, or stretched to fill."""
    import torch  # heavy, and a front that sees no picture does without

    high, wide = (side * patch for side in sized.grid)
    scale = min(high / rgb.shape[0], wide / rgb.shape[1])
    inner = (high, wide) if sized.stretched else tuple(max(1, round(side * scale)) for side in rgb.shape[:2])
    inner = (min(inner[0], high), min(inner[1], wide))
    shown = torch.from_numpy(np.array(rgb)).permute(2, 0, 1).unsqueeze(0).float()
    if inner != rgb.shape[:2]:
        shown = torch.nn.functional.interpolate(shown, size=inner, mode="bicubic", antialias=True)
    out = np.full((high, wide, 3), GREY, dtype=np.uint8)
    top, left = round((high - inner[0]) / 2), round((wide - inner[1]) / 2)
    whole = shown[0].permute(1, 2, 0).round().clamp(0, 255).to(torch.uint8).numpy()
    out[top : top + inner[0], left : left + inner[1]] = whole
    return out


def expand(
    eyes: Eyes | None, ids: Sequence[int], given: Any, most: int | None = None
) -> tuple[list[int], tuple[Picture, ...]]:
    """``ids`` with each place holder as many times as its picture has rows, and the pictures, in their order.

    Raises InvalidRequest for pictures a model cannot see or an engine cannot take (``most``, as for one), and where
    there are more or fewer than place holders.
    """
    if not isinstance(given, Sequence) or isinstance(given, str | bytes | bytearray):
        raise InvalidRequest("images", "must be a list of pictures")
    if eyes is None:
        raise InvalidRequest("images", "this model has no eyes: it reads text only")
    places = sum(token == eyes.token_id for token in ids)
    if len(given) > MOST_PICTURES:
        raise InvalidRequest("images", f"at most {MOST_PICTURES} pictures, got {len(given)}")
    if places != len(given):
        raise InvalidRequest("images", f"{len(given)} pictures for {places} place holders in the prompt")
    out: list[int] = []
    pictures: list[Picture] = []
    for token in ids:
        if token != eyes.token_id:
            out.append(token)
            continue
        picture = prepare_picture(eyes, given[len(pictures)], len(out), f"images[{len(pictures)}]", most)
        pictures.append(picture)
        out += [token] * len(picture.kinds)
    return out, tuple(pictures)
