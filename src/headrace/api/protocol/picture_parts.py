"""Texts and pictures as parts of a message's content, in the three protocols' spellings. Only what the request itself
holds is read: nothing is fetched, whoever asks.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from headrace.contract.errors import InvalidRequest

from ..pictures import MOST_PICTURES, NamedPicture
from ..text.chat import HOLDER

TEXTS = ("text", "input_text", "output_text")
KINDS = ("image_url", "input_image", "image")
PICTURED_ROLES = ("user", "tool")
NOT_FETCHED = "the request itself must hold the picture, nothing is fetched"
INLINE = f"must be a data: URL with base64, such as data:image/png;base64,...: {NOT_FETCHED}"


class Part(msgspec.Struct, kw_only=True):
    """One piece of a message's content: text, or a picture. Other kinds are refused by name.

    ``image_url``: OpenAI's, an object with a ``url`` or (Responses) the URL itself. ``source``: Anthropic's.
    """

    type: str
    text: str | None = None
    image_url: str | dict[str, Any] | None = None
    file_id: str | None = None
    source: dict[str, Any] | None = None


def line(part: Part, where: str, role: str, pictures: list[NamedPicture] | None) -> str:
    """What stands for a part in its message's text: a text itself, ``HOLDER`` for a picture, which ``pictures`` gets
    (None: the model has no eyes). Raises InvalidRequest naming what is wrong."""
    if part.type in KINDS:
        read_picture(part, where, check_place(part, where, role, pictures))
        return HOLDER
    if part.type not in TEXTS:
        kinds = f"parts are text, or pictures ({', '.join(KINDS)})"
        raise InvalidRequest(where, f"a part of type {part.type!r} is not served: {kinds}")
    if part.text is None:
        raise InvalidRequest(f"{where}.text", "is required")
    return part.text


def check_place(part: Part, where: str, role: str, pictures: list[NamedPicture] | None) -> list[NamedPicture]:
    """``pictures``, where one more of a message of this role may be added. Raises InvalidRequest."""
    if pictures is None:
        raise InvalidRequest(where, f"a part of type {part.type!r}: this model has no eyes, it reads text only")
    if role not in PICTURED_ROLES:
        places = "messages of the user and results of tools"
        raise InvalidRequest(where, f"pictures are read in {places} only, not in a message of role {role!r}")
    if len(pictures) == MOST_PICTURES:
        raise InvalidRequest(where, f"at most {MOST_PICTURES} pictures")
    return pictures


def read_picture(part: Part, where: str, pictures: list[NamedPicture]) -> None:
    """Decodes a part of one of ``KINDS`` and adds it to ``pictures``. Raises InvalidRequest naming what is wrong."""
    if part.type == "image":
        pictures.append(NamedPicture(f"{where}.source", _of_source(part.source, f"{where}.source")))
        return
    if part.file_id is not None:
        raise InvalidRequest(f"{where}.file_id", "is not served: nothing is stored; send the picture itself")
    url = part.image_url.get("url") if isinstance(part.image_url, dict) else part.image_url
    field = f"{where}.image_url"
    if not isinstance(url, str):
        raise InvalidRequest(field, INLINE)
    head, comma, data = url.partition(",")
    words = head.lower().split(";")
    if not comma or not words[0].startswith("data:image/") or words[-1] != "base64":
        raise InvalidRequest(field, INLINE)
    pictures.append(NamedPicture(field, _decoded(data, field)))


def _of_source(source: dict[str, Any] | None, field: str) -> bytes:
    if source is None or source.get("type") != "base64" or not isinstance(source.get("data"), str):
        raise InvalidRequest(field, f"must be {{type: base64, media_type, data}}: {NOT_FETCHED}")
    return _decoded(source["data"], f"{field}.data")


def _decoded(data: str, field: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(field, f"is no base64: {error}") from None


def shows_pictures(body: msgspec.Struct) -> bool:
    """Whether there is a picture anywhere in a body that was read: looked at before its parts are."""
    rest: list[Any] = [body]
    while rest:
        one = rest.pop()
        if isinstance(one, msgspec.Struct):
            one = msgspec.structs.asdict(one)
        if isinstance(one, dict):
            if one.get("type") in KINDS:
                return True
            one = list(one.values())
        if isinstance(one, list):
            rest += [item for item in one if isinstance(item, msgspec.Struct | dict | list)]
    return False
