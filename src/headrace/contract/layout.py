"""How a model's KV cache is divided: groups of layers that share block tables, and the bytes of one block.

All groups draw block ids from one pool. That works because every group has the same number of layers
(``layers_per_group``), so a block id means the same amount of memory whichever group holds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from .errors import ConfigError

# How a key or a value may be kept -> bytes of one. Integers are codes, and a row of them carries a scale.
KV_ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "int16": 2, "int8": 1}
KV_SCALE_BYTES = 4


def kv_row_bytes(kv_dtype: str, head_dim: int) -> int:
    """Bytes of one token's key or value in one head."""
    return head_dim * KV_ELEMENT_BYTES[kv_dtype] + (KV_SCALE_BYTES if kv_dtype.startswith("int") else 0)


class KVKind(IntEnum):
    """What a group must keep. Values are shared with the C++ core."""

    FULL = 0
    SLIDING = 1


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers with one block table. ``window`` counts the visible positions, the own one included; 0 = all."""

    kind: KVKind
    window: int
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The KV of one model: ``num_kv_heads`` x ``head_dim`` keys and values per token and layer."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    groups: tuple[KVGroup, ...]

    @property
    def rewrites(self) -> bool:
        """As ``RecordLayout``: keys and values stay where they were written."""
        return False

    @property
    def layers_per_group(self) -> int:
        return max(len(group.layers) for group in self.groups)

    def block_bytes(self, block_size: int, kv_dtype: str = "float32") -> int:
        """Bytes that one block id stands for, over all layers of a group, keys and values."""
        return 2 * self.layers_per_group * block_size * self.num_kv_heads * kv_row_bytes(kv_dtype, self.head_dim)

    def place(self, layer: int) -> tuple[int, int]:
        """``(group, index inside the group)`` of a layer."""
        for g, group in enumerate(self.groups):
            if layer in group.layers:
                return g, group.layers.index(layer)
        raise ConfigError("layer", f"{layer} is in no KV group")


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """The KV of a model that keeps records of bytes which only it can read.

    One block id stands for the same bytes whichever group holds it. Per group: ``token_bytes`` for every token of a
    block, and ``fixed_bytes`` once per block. ``block_multiple``: block sizes must be multiples of it.
    ``most_drafts``: tokens that one step may bring and the next take back; more make that step fail.
    """

    groups: tuple[KVGroup, ...]
    token_bytes: tuple[int, ...]
    fixed_bytes: tuple[int, ...]
    block_multiple: int = 1
    most_drafts: int = 0

    @property
    def rewrites(self) -> bool:
        """Whether a later token takes the place of an earlier one's record in the same block: what is fixed per block
        is what tokens take turns in. A block that is not full must then have one writer, and no other reader."""
        return any(self.fixed_bytes)

    def block_bytes(self, block_size: int, kv_dtype: str = "float32") -> int:  # noqa: ARG002 (records have their own)
        """Bytes of one block, a multiple of ``block_size``. Raises ConfigError for a size that cuts records."""
        if block_size % self.block_multiple:
            raise ConfigError("block_size", f"{block_size} must be a multiple of {self.block_multiple} for this model")
        widest = max(self.used_bytes(group, block_size) for group in range(len(self.groups)))
        return -(-widest // block_size) * block_size

    def used_bytes(self, group: int, block_size: int) -> int:
        """Bytes of one block, from its start, that a group uses."""
        return self.token_bytes[group] * block_size + self.fixed_bytes[group]


Layout = KVLayout | RecordLayout


def group_layers(windows: list[int]) -> tuple[KVGroup, ...]:
    """Cut layers into groups of equal size, one window per group (0 = full attention).

    The group size is the smallest number of layers that share a window, so that 15 sliding and 3 full
    layers become 5 + 1 groups of 3. A remainder makes a last, shorter group, whose spare memory is the price.
    """
    by_window: dict[int, list[int]] = {}
    for layer, window in enumerate(windows):
        by_window.setdefault(window, []).append(layer)
    size = min(len(layers) for layers in by_window.values())
    groups: list[KVGroup] = []
    for window, layers in sorted(by_window.items()):
        kind = KVKind.SLIDING if window else KVKind.FULL
        groups += [KVGroup(kind, window, tuple(layers[i : i + size])) for i in range(0, len(layers), size)]
    return tuple(groups)
