"""Pictures as callers give them become what a prompt holds: decoded, brought to a size the model reads, laid out.

A picture is one or more lines of cells, each followed by an end of line, between a beginning and an end. Sizes follow
the rules the model was trained with: a picture that is too small or too large is scaled, its shape kept, and centred on
grey.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.config import EngineConfig
from headrace.contract.errors import ConfigError, InvalidRequest
from headrace.contract.picture import END, IMAGE, NEWLINE, START, Eyes, Picture, picture_id

from .picture_files import pixels_of, sides_of
from .text.tokenizer import Tokenizer

GREY = 127
MOST_PICTURES = 64
MOST_SOURCE_PIXELS = 1 << 26  # of all pictures of a request, before they are scaled
PLACE_HOLDERS = ("<image>", "<｜deepseek_image｜>")


class NamedPicture(NamedTuple):
    """A picture as ``head_of`` takes it, and the field that errors about it name."""

    field: str
    data: Any


@dataclass(frozen=True, slots=True)
class Sized:
    """``grid``: patches down and across. ``stretched``: the shape was clipped and is not kept."""

    grid: tuple[int, int]
    stretched: bool


@dataclass(frozen=True, slots=True)
class Head:
    """What is known of a picture before it is decoded: ``given`` and the field that errors name, its ``sides`` (height,
    width) and how it is read."""

    given: Any
    field: str
    sides: tuple[int, int]
    sized: Sized
    cells: tuple[int, int]

    @property
    def rows(self) -> int:
        return num_rows(self.cells)


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


def head_of(eyes: Eyes, given: Any, field: str, most: int | None = None) -> Head:
    """``given``: (height, width, 3) uint8, an encoded file's bytes, or these with a field of their own. ``most``: rows
    that it may have. Raises InvalidRequest naming the field."""
    if isinstance(given, NamedPicture):
        field, given = given
    height, width = sides_of(given, field)
    sized = size_for(eyes, width, height)
    head = Head(given, field, (height, width), sized, cells_of(eyes, sized.grid))
    if most is not None and head.rows > most:
        words = f"takes {head.rows} rows of the prompt; this engine cuts no picture, and a step has {most}"
        raise InvalidRequest(field, f"{words} (token_budget)")
    return head


def prepare_picture(eyes: Eyes, head: Head, start: int) -> Picture:
    """The picture as rows of a prompt from ``start`` on. Raises InvalidRequest where it cannot be decoded."""
    rgb = pixels_of(head.given, head.field)
    if rgb.shape[:2] != head.sides:
        raise InvalidRequest(head.field, "cannot be decoded: its header tells of other sides")
    pixels, (down, across), grid = _resized(rgb, head.sized, eyes.patch).tobytes(), head.cells, head.sized.grid
    line = bytes([IMAGE] * across + [NEWLINE])
    kinds = bytes([START]) + line * down + bytes([END])
    return Picture(start=start, kinds=kinds, grid=grid, pixels=pixels, id=picture_id(grid, pixels))


def _resized(rgb: NDArray[np.uint8], sized: Sized, patch: int) -> NDArray[np.uint8]:
    """(grid x patch, 3): the picture as large as fits, centred, or stretched to fill."""
    import torch  # heavy, and a front that sees no picture does without

    high, wide = (side * patch for side in sized.grid)
    scale = min(high / rgb.shape[0], wide / rgb.shape[1])
    inner = (high, wide) if sized.stretched else tuple(max(1, round(side * scale)) for side in rgb.shape[:2])
    inner = (min(inner[0], high), min(inner[1], wide))
    shown = torch.from_numpy(rgb.astype(np.float32)).permute(2, 0, 1).unsqueeze(0)
    if inner != rgb.shape[:2]:
        shown = torch.nn.functional.interpolate(shown, size=inner, mode="bicubic", antialias=True)
    out = np.full((high, wide, 3), GREY, dtype=np.uint8)
    top, left = round((high - inner[0]) / 2), round((wide - inner[1]) / 2)
    whole = shown[0].permute(1, 2, 0).round().clamp(0, 255).to(torch.uint8).numpy()
    out[top : top + inner[0], left : left + inner[1]] = whole
    return out


def expand(
    eyes: Eyes | None,
    ids: Sequence[int],
    given: Any,
    most: int | None = None,
    check: Callable[[int], None] | None = None,
    holder: str = "",
) -> tuple[list[int], tuple[Picture, ...]]:
    """``ids`` with each place holder as many times as its picture has rows, and the pictures, in their order. ``check``
    is told how many ids that makes, before anything is decoded. ``holder``: the place holder's spelling, for errors.

    Raises InvalidRequest as ``expanded_ids``, what ``check`` raises, and for pictures that cannot be decoded.
    """
    out, heads, starts = _laid_out(eyes, ids, given, most, holder)
    if check is not None:
        check(len(out))
    assert eyes is not None
    return out, tuple(prepare_picture(eyes, head, start) for head, start in zip(heads, starts))


def expanded_ids(eyes: Eyes | None, ids: Sequence[int], given: Any) -> list[int]:
    """The ids that ``expand`` gives; nothing is decoded.

    Raises InvalidRequest for pictures a model cannot see or an engine cannot take, and where there are more or fewer
    than place holders.
    """
    return _laid_out(eyes, ids, given, None)[0]


def refuse_unfilled(eyes: Eyes | None, ids: Sequence[int], holder: str = "") -> None:
    """For prompts without pictures: a place holder would be read as any other token, and the picture be missed by
    nobody. Raises InvalidRequest."""
    if eyes is not None and (places := _places(eyes, ids)):
        name = _holder_name(eyes, holder)
        words = f"holds {places} place holders for pictures, {name}, and no picture came"
        raise InvalidRequest("prompt", f"{words}: give one for each (images), or send them as parts of messages")


def _places(eyes: Eyes, ids: Sequence[int]) -> int:
    return sum(token == eyes.token_id for token in ids)


def _holder_name(eyes: Eyes, holder: str) -> str:
    return f"{holder or 'the token'} (id {eyes.token_id})"


def _check_sum(heads: Sequence[Head]) -> None:
    pixels = 0
    for head in heads:
        pixels += head.sides[0] * head.sides[1]
        if pixels > MOST_SOURCE_PIXELS:
            words = (
                f"with the pictures before it has {pixels} pixels, more than the {MOST_SOURCE_PIXELS} of one request"
            )
            raise InvalidRequest(head.field, words)


def _laid_out(
    eyes: Eyes | None, ids: Sequence[int], given: Any, most: int | None, holder: str = ""
) -> tuple[list[int], list[Head], list[int]]:
    """Ids, the pictures' heads, and where they begin."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes | bytearray):
        raise InvalidRequest("images", "must be a list of pictures")
    if eyes is None:
        raise InvalidRequest("images", "this model has no eyes: it reads text only")
    places, name = _places(eyes, ids), _holder_name(eyes, holder)
    if len(given) > MOST_PICTURES:
        raise InvalidRequest("images", f"at most {MOST_PICTURES} pictures, got {len(given)}")
    if places != len(given):
        words = f"{len(given)} pictures for {places} place holders in the prompt"
        raise InvalidRequest("images", f"{words}: write {name} where each one belongs")
    heads = [head_of(eyes, one, f"images[{number}]", most) for number, one in enumerate(given)]
    _check_sum(heads)
    out: list[int] = []
    starts: list[int] = []
    for token in ids:
        count = 1
        if token == eyes.token_id:
            count = heads[len(starts)].rows
            starts.append(len(out))
        out += [token] * count
    return out, heads, starts
