"""Names of stored KV: a SHA-256 chain over grains of 128 tokens. The same bytes as ``csrc/core/grain_keys``.

This is the readable counterpart; the engine uses the C++ one. No interpreter's hash and no pickle may enter here: a
key must be equal in every process and every year.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

GRAIN = 128
DOMAIN = b"headrace.kv/1"
ADAPTER, MEDIA, EMBEDS = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Extras:
    """What besides tokens shapes KV. ``media``: (id, first position, length), ordered and apart."""

    adapter: str = ""
    media: tuple[tuple[str, int, int], ...] = ()
    embeds_digest: str = ""

    def of_grain(self, start: int) -> bytes:
        """Tagged, length-framed extras of the grain that begins at ``start``."""
        parts = [_framed(ADAPTER, self.adapter.encode())] if self.adapter else []
        for name, first, length in self.media:
            if first < start + GRAIN and first + length > start:
                parts.append(_framed(MEDIA, struct.pack("<i", first - start) + name.encode()))
        if self.embeds_digest:
            parts.append(_framed(EMBEDS, self.embeds_digest.encode()))
        return b"".join(parts)


NO_EXTRAS = Extras()


def _framed(tag: int, payload: bytes) -> bytes:
    return struct.pack("<BI", tag, len(payload)) + payload


def namespace_digest(facts: Iterable[tuple[str, str]]) -> bytes:
    """32 bytes over everything that changes stored bytes (weights, dtype, layout, ...), framed, in the given order."""
    digest = hashlib.sha256(b"headrace.kv.namespace/1")
    for name, value in facts:
        for text in (name.encode(), value.encode()):
            digest.update(struct.pack("<I", len(text)) + text)
    return digest.digest()


def grain_root(name_space: bytes, salt: str) -> bytes:
    """Where a tenant's chains begin: without the salt nobody can name, so find, what is stored under it."""
    text = salt.encode()
    return hashlib.sha256(DOMAIN + name_space + struct.pack("<I", len(text)) + text).digest()


def grain_chain(root: bytes, tokens: Sequence[int], extras: Extras = NO_EXTRAS) -> list[bytes]:
    """One 32-byte key per full grain of ``tokens``."""
    keys, parent = [], root
    for start in range(0, len(tokens) // GRAIN * GRAIN, GRAIN):
        parent = next_key(parent, tokens[start : start + GRAIN], extras.of_grain(start))
        keys.append(parent)
    return keys


def next_key(parent: bytes, grain: Sequence[int], extras: bytes = b"") -> bytes:
    """The key of a grain's tokens behind ``parent``, the key before it or the root."""
    words = np.asarray(grain, dtype="<i4").tobytes()
    return hashlib.sha256(parent + struct.pack("<I", GRAIN) + words + extras).digest()


def tenant_tag(name: str) -> bytes:
    """16 bytes that mark a tenant's entries for purging and quotas; they do not lead to its keys. ``name``: its name;
    where no tenants are configured, a salt."""
    return hashlib.sha256(b"headrace.kv.tenant/1" + name.encode()).digest()[:16]
