"""A conversation as callers of ``LLM.chat`` and lines of ``headrace generate`` give it becomes a prompt. Knows no HTTP.

Contents are text or lists of parts, and parts are what the server takes: texts, joined a line each, and pictures. Here
a picture may also be ``{"type": "image", "image": X}`` with an encoded file's bytes or a (height, width, 3) array of
uint8. Nothing else reaches a chat template: templates write down what they do not understand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.contract.errors import InvalidRequest
from headrace.contract.picture import Eyes

from .pictures import NamedPicture
from .protocol.picture_parts import Part, check_place, line
from .text.chat import HOLDER, encode_chat
from .text.tokenizer import Tokenizer

MESSAGE = "{'role': 'user', 'content': 'Hello'}"
PART = "{'type': 'text', 'text': 'Hello'}"


def chat_prompt(
    tokenizer: Tokenizer,
    eyes: Eyes | None,
    messages: Sequence[Mapping[str, Any]],
    context: int | None = None,
    where: str = "messages",
) -> dict[str, Any]:
    """A prompt of token ids, with ``images`` where there are pictures. Raises InvalidRequest naming the part, as one of
    ``where``."""
    pictures: list[NamedPicture] = []
    told = read_messages(messages, None if eyes is None else pictures, where)
    if eyes is None or not pictures:
        return {"prompt_token_ids": encode_chat(tokenizer, told, context=context)}
    picture = tokenizer.token_text(eyes.token_id)
    return pictured(eyes, encode_chat(tokenizer, told, context=context, picture=picture), pictures)


def pictured(eyes: Eyes, ids: list[int], pictures: list[NamedPicture]) -> dict[str, Any]:
    """A conversation's ids with its pictures. Raises InvalidRequest where they show more or fewer."""
    shown = ids.count(eyes.token_id)
    if shown != len(pictures):
        words = f"{HOLDER!a} in a text, or a chat template that drops pictures: {len(pictures)} came"
        raise InvalidRequest("messages", f"{words}, the prompt shows {shown}")
    return {"prompt_token_ids": ids, "images": pictures}


def read_messages(messages: Any, pictures: list[NamedPicture] | None, where: str = "messages") -> list[dict[str, Any]]:
    """The messages with plain text as contents, a ``HOLDER`` for each picture; ``pictures`` gets those, None: the model
    has no eyes. Raises InvalidRequest naming the message or the part."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InvalidRequest(where, f"must be a list of messages such as {MESSAGE}, got {type(messages).__name__}")
    if not messages:
        raise InvalidRequest(where, "must hold at least one message")
    return [_message(message, f"{where}[{i}]", pictures) for i, message in enumerate(messages)]


def _message(message: Any, where: str, pictures: list[NamedPicture] | None) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(where, f"must be a message such as {MESSAGE}, got {type(message).__name__}")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f"{where}.role", f"must be text such as 'user', got {role!r}")
    if isinstance(content, list | tuple):
        lines = [_line(part, f"{where}.content[{j}]", role, pictures) for j, part in enumerate(content)]
        content = "\n".join(lines)
    elif content is None and role == "assistant" and message.get("tool_calls"):
        content = ""
    elif not isinstance(content, str):
        words = "is required" if content is None else f"must be text or a list of parts, got {type(content).__name__}"
        raise InvalidRequest(f"{where}.content", words)
    return {**message, "content": content}


def _line(given: Any, where: str, role: str, pictures: list[NamedPicture] | None) -> str:
    if not isinstance(given, Mapping):
        raise InvalidRequest(where, f"must be a part such as {PART}, got {type(given).__name__}")
    try:
        part = msgspec.convert({name: value for name, value in given.items() if name != "image"}, Part)
    except msgspec.ValidationError as error:
        raise InvalidRequest(where, str(error)) from error
    if part.type != "image" or part.source is not None:
        return line(part, where, role, pictures)
    check_place(part, where, role, pictures).append(NamedPicture(f"{where}.image", given.get("image")))
    return HOLDER
