"""``/v1/messages`` and its ``count_tokens``: the requests (Anthropic's protocol), as far as they are text."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headrace.contract.errors import InvalidRequest
from headrace.contract.request import SamplingParams

from .chat_body import Message, Part


class Turn(msgspec.Struct, kw_only=True):
    """One message; contents are text or blocks of text."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Part]


class CountBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a prompt is made of."""

    messages: list[Turn]
    model: str | None = None
    system: str | list[Part] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    cache_control: Any = None  # prefixes are cached anyway
    output_config: Any = None

    def conversation(self) -> list[Message]:
        """Messages for the chat template. Raises InvalidRequest for what is not served."""
        if self.tools:
            raise InvalidRequest("tools", "calls are not served yet")
        if (self.thinking or {}).get("type") not in (None, "disabled"):
            raise InvalidRequest("thinking", "is not served: it may only be disabled")
        if not self.messages:
            raise InvalidRequest("messages", "must hold at least one message")
        system = [Message(role="system", content=self.system)] if self.system else []
        return system + [Message(role=turn.role, content=turn.content) for turn in self.messages]


class MessagesBody(CountBody, kw_only=True):
    """The whole body. The last group is accepted and without effect."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None

    metadata: Any = None
    service_tier: str | None = None

    def sampling(self) -> SamplingParams:
        return SamplingParams(
            max_tokens=self.max_tokens,
            stop=tuple(self.stop_sequences) if self.stop_sequences else None,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=self.top_k or 0,
            top_p=1.0 if self.top_p is None else self.top_p,
        )
