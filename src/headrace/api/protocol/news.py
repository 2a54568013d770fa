"""News: what one choice has gained since the last look; and Usage: what a whole request took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from headrace.api.output import Logprob, RequestOutput

from ..text.text_marks import Piece


@dataclass(frozen=True, slots=True)
class News:
    """``text`` may be empty while ``token_ids`` is not (half a character, a held-back stop string).

    ``logprobs`` has one entry per token, or None when nobody asked. ``finish_reason`` comes with the last news.
    ``pieces``: the text with the marks that are tokens in it, where the request has such marks.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts of tokens; the engine's, not the text's. ``thought_tokens``: of the completion's, None where no thoughts
    can come."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    thought_tokens: int | None = None

    def openai(self) -> dict[str, Any]:
        """As Chat Completions and Completions spell it."""
        out: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
        if self.thought_tokens is not None:
            out["completion_tokens_details"] = {"reasoning_tokens": self.thought_tokens}
        return out


class Reply(Protocol):
    """One protocol's way to put news into words. Methods are called in order: begin, news ..., end or error; or, for an
    answer that is told at once, note ..., whole.

    ``begin`` sees the outputs with their prompts filled in, before any token.
    """

    def begin(self, outputs: list[RequestOutput]) -> bytes: ...
    def news(self, news: News) -> bytes: ...
    def note(self, news: News) -> None: ...
    def end(self, outputs: list[RequestOutput], usage: Usage) -> bytes: ...
    def error(self, message: str, kind: str) -> bytes: ...
    def whole(self, outputs: list[RequestOutput], usage: Usage) -> dict[str, Any]: ...
