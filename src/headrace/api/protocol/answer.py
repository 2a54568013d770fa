"""An answer taken apart: text, thoughts and tool calls, as events and as what they add up to. Parses nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..text.answer_forms import Mark
from .news import News


@dataclass(frozen=True, slots=True)
class Said:
    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallGrew:
    """``arguments``: more of the raw JSON text."""

    index: int
    arguments: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    index: int


Event = Said | Thought | CallBegun | CallGrew | CallEnded


class NewsParser(Protocol):
    """One choice's news in, events out; the news with a finish reason is the last."""

    def take(self, news: News) -> list[Event]: ...


class Reading(Protocol):
    """How to read the answers of one request."""

    @property
    def plain(self) -> bool:
        """Nothing but text can come."""
        ...

    @property
    def mark_ids(self) -> Mapping[int, Mark]:
        """Tokens that are to stand as marks among the news' pieces."""
        ...

    def parser(self) -> NewsParser:
        """A new one, for one choice."""
        ...

    def thought_tokens(self, ids: Sequence[int]) -> int | None:
        """How many of an answer's tokens are thought; None where no thoughts can come."""
        ...


@dataclass(slots=True)
class Call:
    id: str
    name: str
    arguments: str = ""
    complete: bool = False


@dataclass(slots=True)
class Answer:
    """What the events of one choice add up to."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    def take(self, event: Event) -> None:
        if isinstance(event, Said):
            self.content += event.text
        elif isinstance(event, Thought):
            self.reasoning += event.text
        elif isinstance(event, CallBegun):
            self.calls.append(Call(event.id, event.name))
        elif isinstance(event, CallGrew):
            self.calls[event.index].arguments += event.arguments
        else:
            self.calls[event.index].complete = True

    def finish_reason(self, reason: str | None) -> str | None:
        """``tool_calls`` where the answer came to its own end and every call in it is complete."""
        called = bool(self.calls) and all(call.complete for call in self.calls)
        return "tool_calls" if reason == "stop" and called else reason
