"""``/tokenize`` and ``/detokenize``: the requests. Names are those vLLM users know."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.contract.errors import InvalidRequest

from .chat_body import Message


class TokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A ``prompt``, or ``messages`` as the chat route would read them."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool = True
    return_token_strs: bool = False

    def check(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequest("prompt", "give either prompt or messages")


class DetokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    tokens: list[int]
    model: str | None = None
