"""An answer as a sequence of parts, for protocols that number theirs: each part opens, grows and closes in turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .answer import CallBegun, CallEnded, CallGrew, Event, Said, Thought

TEXT, THOUGHT, CALL = "text", "thought", "call"


@dataclass(slots=True)
class Part:
    """``text``: what was said or thought, or a call's arguments. ``id`` and ``name`` are a call's."""

    kind: str
    text: str = ""
    id: str = ""
    name: str = ""
    complete: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """``what``: open, grow (by ``more``) or close, of part number ``index``."""

    what: str
    index: int
    more: str = ""


class Parts:
    """``take`` turns events into changes; ``items`` is the state after them."""

    def __init__(self) -> None:
        self.items: list[Part] = []
        self._open = False

    def take(self, events: Sequence[Event]) -> Iterator[Change]:
        for event in events:
            if isinstance(event, Said | Thought):
                yield from self._begin_unless(TEXT if isinstance(event, Said) else THOUGHT)
                yield self._grow(event.text)
            elif isinstance(event, CallBegun):
                yield from self._begin(Part(CALL, id=event.id, name=event.name))
            elif isinstance(event, CallGrew):
                yield self._grow(event.arguments)
            elif isinstance(event, CallEnded):
                self.items[-1].complete = True
                yield from self.close()

    def ensure_one(self) -> Iterator[Change]:
        """An answer of no token still has a text."""
        if not self.items:
            yield from self._begin(Part(TEXT))

    def close(self) -> Iterator[Change]:
        """Ends the part that is open, if one is."""
        if self._open:
            self._open = False
            yield Change("close", len(self.items) - 1)

    def _begin_unless(self, kind: str) -> Iterator[Change]:
        if not (self._open and self.items[-1].kind == kind):
            yield from self._begin(Part(kind))

    def _begin(self, part: Part) -> Iterator[Change]:
        yield from self.close()
        self.items.append(part)
        self._open = True
        yield Change("open", len(self.items) - 1)

    def _grow(self, more: str) -> Change:
        self.items[-1].text += more
        return Change("grow", len(self.items) - 1, more)
