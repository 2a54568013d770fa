"""A conversation with pictures in it, as callers of ``LLM.chat`` give it, becomes a prompt. Knows no HTTP.

A picture is a part of a message's content: ``{"type": "image", "image": X}`` with an encoded file's bytes or a (height,
width, 3) array of uint8, or one of the forms that the server takes. Contents without pictures reach the chat template
as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.contract.errors import InvalidRequest
from headrace.contract.picture import Eyes

from .protocol.picture_parts import KINDS, Part, read_picture
from .text.chat import HOLDER, encode_chat
from .text.tokenizer import Tokenizer


def chat_prompt(
    tokenizer: Tokenizer, eyes: Eyes | None, messages: Sequence[Mapping[str, Any]], context: int | None = None
) -> dict[str, Any]:
    """A prompt of token ids, with ``images`` where there are pictures. Raises InvalidRequest naming the part."""
    told, pictures = with_holders(messages)
    if not pictures:
        return {"prompt_token_ids": encode_chat(tokenizer, messages, context=context)}
    if eyes is None:
        raise InvalidRequest("messages", "this model has no eyes: it reads text only")
    picture = tokenizer.token_text(eyes.token_id)
    return {"prompt_token_ids": encode_chat(tokenizer, told, context=context, picture=picture), "images": pictures}


def with_holders(messages: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[Any]]:
    """The messages with a line of ``HOLDER`` for each picture, and the pictures in their order."""
    pictures: list[Any] = []
    told = []
    for i, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list) and any(_kind(part) in KINDS for part in content):
            lines = [_line(part, f"messages[{i}].content[{j}]", pictures) for j, part in enumerate(content)]
            message = {**message, "content": "\n".join(lines)}
        told.append(message)
    return told, pictures


def _kind(part: Any) -> Any:
    return part.get("type") if isinstance(part, Mapping) else None


def _line(part: Any, where: str, pictures: list[Any]) -> str:
    if _kind(part) not in KINDS:
        text = part.get("text") if _kind(part) == "text" else None
        if not isinstance(text, str):
            raise InvalidRequest(where, "must be a text or a picture")
        if HOLDER in text:
            raise InvalidRequest(where, f"must not hold {HOLDER!a}, which stands for a picture")
        return text
    if part.get("image") is not None:
        pictures.append(part["image"])
        return HOLDER
    try:
        read_picture(msgspec.convert(dict(part), Part), where, pictures)
    except msgspec.ValidationError as error:
        raise InvalidRequest(where, str(error)) from error
    return HOLDER
