"""Where a sequence's memory lies: the family's caches as records in the pool's blocks, three kinds of groups.

* the *compressed* group (full attention): compressed KV and index keys of every source layer;
* *window* groups (sliding): window KV, as many layers per group as come near the compressed group's bytes, since a
  block id costs the same in every group;
* *look-back* groups (a short sliding window): compressed token ids for Engram, and the open pairs of one ratio-2
  compressor each. A block holds the newest few pairs: a half is needed until its partner comes, one token
  later, and the partner may come again after drafts were rejected;
* where the model's own heads draft, one more window group: what draft layers see of past tokens.

With everything in blocks, prefix cache, preemption and forks need nothing of their own. Byte formats: ``quantise``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.contract.layout import KVGroup, KVKind, RecordLayout
from headrace.kernels.ops import PagedRecords
from headrace.models.context import GroupIndex

from .config import V41Config

BLOCK_MULTIPLE = 2  # the ratios divide it: no compressed row straddles blocks
# Open pairs that a block keeps, newest first to go: a step may take back up to MOST_DRAFTS rejected tokens.
OPEN_ROWS = 6
MOST_DRAFTS = 2 * OPEN_ROWS - 1
ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class Section:
    """``rows`` records of ``width`` bytes from ``offset`` on, in every block of a group."""

    group: int
    offset: int
    rows: int
    width: int


def mxfp8_bytes(columns: int) -> int:
    return columns + columns // 32


def kv_bytes(config: V41Config) -> int:
    """One row of compressed KV: 288 bytes of 512 values, or as wide as a window record."""
    columns = config.head_dim
    return columns // 2 + columns // 16 if config.narrow_kv else mxfp8_bytes(columns)


def compressed_bytes(config: V41Config, layer: int) -> int:
    """Bytes per compressed row that a layer owns: KV, and index keys."""
    topology, bytes_ = config.topology, 0
    if topology.owns_kv(layer):
        bytes_ += kv_bytes(config)
    if topology.owns_index_keys(layer):
        bytes_ += config.index_dim // 2 + config.index_dim // 32
    return bytes_


def window_groups(config: V41Config) -> list[tuple[int, ...]]:
    """Layers of each window group."""
    ratios = config.topology.ratios
    compressed = sum(compressed_bytes(config, layer) / r for layer, r in enumerate(ratios) if r)
    size = max(1, int(compressed // mxfp8_bytes(config.head_dim)))
    layers = range(config.num_layers)
    return [tuple(layers[i : i + size]) for i in range(0, config.num_layers, size)]


def open_layers(config: V41Config) -> tuple[int, ...]:
    """Compressors that see pairs of tokens."""
    topology = config.topology
    return tuple(n for n in range(config.num_layers) if topology.owns_kv(n) and topology.ratios[n] == 2)


def look_back(config: V41Config) -> int:
    """Window of the look-back groups: a token, and what came before it that others still need."""
    return max(2, config.engram.longest if config.engram else 0)


def open_width(config: V41Config) -> int:
    return 2 * config.head_dim * 4 + ID_BYTES  # score and latent, float32, and the position they are of


def look_back_groups(config: V41Config) -> list[tuple[int, ...]]:
    """Compressors of each look-back group, one or none; the first group holds the token ids."""
    return [(layer,) for layer in open_layers(config)] or [()]


def draft_layers(config: V41Config) -> tuple[int, ...]:
    """Draft layers as records know them: they follow the backbone's."""
    return tuple(range(config.num_layers, config.num_layers + config.draft.num_layers))


def kv_layout(config: V41Config, *, drafts: bool = False) -> RecordLayout:
    """``drafts``: with the group of the draft layers, behind all others."""
    ratios = config.topology.ratios
    windows, backs = window_groups(config), look_back_groups(config)
    sources = tuple(n for n in range(config.num_layers) if ratios[n] and compressed_bytes(config, n))
    groups = [KVGroup(KVKind.FULL, 0, sources)]
    groups += [KVGroup(KVKind.SLIDING, config.window, layers) for layers in windows]
    groups += [KVGroup(KVKind.SLIDING, look_back(config), layers) for layers in backs]
    per_pair = sum(2 * compressed_bytes(config, n) // ratios[n] for n in sources)
    window_bytes = [len(layers) * mxfp8_bytes(config.head_dim) for layers in windows]
    token_bytes = (-(-per_pair // 2), *window_bytes, *(0 if number else ID_BYTES for number in range(len(backs))))
    open_bytes = [len(layers) * OPEN_ROWS * open_width(config) for layers in backs]
    fixed_bytes = (*[0] * (1 + len(windows)), *open_bytes)
    if drafts:
        # A block drafted behind position p sees [p - window, p): one more than a token that sees itself.
        groups.append(KVGroup(KVKind.SLIDING, config.window + 1, draft_layers(config)))
        token_bytes = (*token_bytes, config.draft.num_layers * mxfp8_bytes(config.head_dim))
        fixed_bytes = (*fixed_bytes, 0)
    return RecordLayout(tuple(groups), token_bytes, fixed_bytes, BLOCK_MULTIPLE, MOST_DRAFTS)


class Records:
    """The sections of one block size, by layer."""

    def __init__(self, config: V41Config, block_size: int, *, drafts: bool = False) -> None:
        self.kv: dict[int, Section] = {}
        self.index_codes: dict[int, Section] = {}
        self.index_scales: dict[int, Section] = {}
        self.window: dict[int, Section] = {}
        self.open: dict[int, Section] = {}
        self.block_size = block_size
        self._place_compressed(config)
        windows, backs = window_groups(config), len(look_back_groups(config))
        for group, layers in enumerate(windows, start=1):
            self._place_windows(config, group, layers)
        first_back = 1 + len(windows)
        if drafts:
            self._place_windows(config, first_back + backs, draft_layers(config))
        self.ids = Section(first_back, 0, block_size, ID_BYTES)
        self.open_rows = min(OPEN_ROWS, block_size // 2)
        for number, layer in enumerate(open_layers(config)):
            offset = 0 if number else ID_BYTES * block_size
            self.open[layer] = Section(first_back + number, offset, self.open_rows, open_width(config))

    def _place_windows(self, config: V41Config, group: int, layers: Sequence[int]) -> None:
        width = mxfp8_bytes(config.head_dim)
        for place, layer in enumerate(layers):
            self.window[layer] = Section(group, place * width * self.block_size, self.block_size, width)

    def _place_compressed(self, config: V41Config) -> None:
        topology, offset = config.topology, 0

        def place(layer: int, width: int) -> Section:
            nonlocal offset
            section = Section(0, offset, self.block_size // topology.ratios[layer], width)
            offset += section.rows * width
            return section

        for layer in range(config.num_layers):
            if topology.owns_index_keys(layer):
                self.index_codes[layer] = place(layer, config.index_dim // 2)
                self.index_scales[layer] = place(layer, config.index_dim // 32)
            if topology.owns_kv(layer):
                self.kv[layer] = place(layer, kv_bytes(config))


class Pages:
    """Reads and writes records of the sequences of one step. Holds the pool's memory, never a copy of it."""

    def __init__(self, blocks: Tensor, groups: Sequence[GroupIndex]) -> None:
        """``blocks`` (num_blocks, 1, block_size, bytes per token) uint8."""
        self._blocks = blocks.flatten(1)
        self._given = [group.block_table.contiguous() for group in groups]
        self._tables = [table.long() for table in self._given]

    def records(self, section: Section) -> PagedRecords:
        """The section as ops take it."""
        table = self._given[section.group]
        return PagedRecords(self._blocks, table, section.offset, section.rows, section.width)

    def write(self, section: Section, slices: Tensor, rows: Tensor, data: Tensor) -> None:
        """``data`` (n, width) bytes as rows ``rows`` (n,) of the sequences ``slices`` (n,)."""
        self.put(section, self._tables[section.group][slices, rows // section.rows], rows % section.rows, data)

    def read(self, section: Section, slices: Tensor, rows: Tensor) -> Tensor:
        """(n, width) bytes."""
        return self.get(section, self._tables[section.group][slices, rows // section.rows], rows % section.rows)

    def block_of(self, section: Section, slices: Tensor, block: Tensor) -> Tensor:
        """Pool blocks (n,) that are the sequences' ``block``-th ones."""
        return self._tables[section.group][slices, block]

    def put(self, section: Section, blocks: Tensor, rows: Tensor, data: Tensor) -> None:
        self._view(section)[blocks, rows] = data

    def get(self, section: Section, blocks: Tensor, rows: Tensor) -> Tensor:
        return self._view(section)[blocks, rows]

    def _view(self, section: Section) -> Tensor:
        part = self._blocks[:, section.offset : section.offset + section.rows * section.width]
        return part.unflatten(1, (section.rows, section.width))


def as_bytes(x: Tensor) -> Tensor:
    """(n, k) of any type -> (n, bytes)."""
    return x.contiguous().view(torch.uint8)


def as_floats(data: Tensor) -> Tensor:
    return data.contiguous().view(torch.float32)


def as_ids(data: Tensor) -> Tensor:
    """(n, 4) bytes -> (n,) int32."""
    return data.contiguous().view(torch.int32).squeeze(-1)
