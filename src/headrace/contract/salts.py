"""Salts: who may find what in a cache. A plain one is its caller's text; a joined one is made here, of parts.

A joined salt begins with a character that no plain one may hold and says how long each part is. So no text of a
caller's spells a joined salt, and no two lists of parts give one. Never join salts otherwise.
"""

from __future__ import annotations

from typing import Any

from . import plain
from .errors import InvalidRequest

MARK = "\x1f"


def plain_salt(field: str, value: Any) -> str:
    """A caller's salt. Raises InvalidRequest for what is no text or holds the mark of joined ones."""
    salt = plain.text(field, value)
    if MARK in salt:
        raise InvalidRequest(field, "must not hold the control character U+001F")
    return salt


def joined(kind: str, *parts: str) -> str:
    """The salt of a kind (a word of ours) and parts, which may be plain or joined salts."""
    return MARK + kind + MARK + "".join(f"{len(part)}:{part}" for part in parts)
