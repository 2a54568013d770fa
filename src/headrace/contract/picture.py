"""A picture in a prompt, as it travels from caller to worker: pixels in their final size, and where its rows lie.

No tensor and no file format: what is decoded and resized is decided in front of the engine, what is computed behind it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec

from .salts import joined

START, IMAGE, NEWLINE, END = 0, 1, 2, 3
"""What a row of a picture stands for: its beginning, a cell of it, the end of a line of cells, its end."""


@dataclass(frozen=True, slots=True)
class Eyes:
    """What pictures must be like: sides of a patch in pixels and of a cell in patches, tokens at most, pixels at least,
    width at most as a multiple of the height (None: any). ``token_id`` stands for every row of a picture."""

    token_id: int
    patch: int
    downsample: int
    max_tokens: int
    min_pixels: int
    max_wh_ratio: float | None


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """Rows ``start`` to ``start + len(kinds)`` of a prompt, one of the kinds above each.

    ``grid``: patches down and across. ``pixels``: RGB bytes, row by row, of grid x patch size. ``id``: what it is known
    by in prefix hashes, a digest of its content. ``rows``: float32 (kinds, hidden) where an encoder has been before, in
    place of pixels; the model's own would give the same bits.
    """

    start: int
    kinds: bytes
    grid: tuple[int, int]
    pixels: bytes
    id: str
    rows: bytes = b""

    @property
    def end(self) -> int:
        return self.start + len(self.kinds)


def picture_id(grid: tuple[int, int], pixels: bytes) -> str:
    """Equal for equal content, wherever it lies in a prompt."""
    return hashlib.sha256(f"headrace picture {grid[0]}x{grid[1]} ".encode() + pixels).hexdigest()


def with_pictures(salt: str, pictures: tuple[Picture, ...]) -> str:
    """A salt for stores that know tokens only: sequences with other pictures, or elsewhere, never meet."""
    if not pictures:
        return salt
    return joined("pictures", salt, *(part for p in pictures for part in (str(p.start), p.id)))
