"""An answer's pieces become events. The same events whether the answer is told whole or streamed.

A call that no grammar guarantees is told once it is complete and parses; until then it may still turn out to be text.
A call that is guaranteed is told as it grows. Never tells arguments as finished that are not.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..output import RequestOutput
from ..text.answer_forms import AnswerForm, Mark, MarkTable
from ..text.text_marks import Piece, TextMarks
from .answer import Answer, CallBegun, CallEnded, CallGrew, Event, NewsParser, Reading, Said, Thought
from .call_body import CallBody
from .news import News, Usage
from .thought_count import ThoughtCount


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """How to read an answer. ``names``: functions that may be called; another name is text. ``guaranteed``: a grammar
    sees to the form. ``demanded``: outside thoughts it allows calls only. ``in_thought``: the prompt has begun one.
    ``formatted``: text has a form in which marks are nothing but text. ``most_calls``: further ones are dropped; None:
    there may be any number."""

    form: AnswerForm = field(default_factory=AnswerForm)
    marks: MarkTable = field(default_factory=MarkTable)
    names: Collection[str] = ()
    guaranteed: bool = False
    demanded: bool = False
    in_thought: bool = False
    formatted: bool = False
    thoughts: ThoughtCount | None = None
    most_calls: int | None = None

    @property
    def plain(self) -> bool:
        """Nothing but text can come."""
        return not self.form.thinks and (self.form.call is None or not self.names)

    @property
    def mark_ids(self) -> Mapping[int, Mark]:
        return self.marks.ids

    def parser(self) -> AnswerParser:
        return AnswerParser(self)

    def thought_tokens(self, ids: Sequence[int]) -> int | None:
        return None if self.thoughts is None else self.thoughts.of(ids)


class AnswerParser:
    """One choice's pieces in, events out."""

    def __init__(self, plan: AnswerPlan) -> None:
        self._plan = plan
        self._texts = TextMarks(plan.marks.texts)
        self._state: Callable[[Piece], None] = self._in_thought if plan.in_thought else self._in_text
        self._events: list[Event] = []
        self._body = CallBody()
        self._opening = ""  # what came before the body: its mark and blanks
        self._num_calls = 0
        self._told = 0  # characters of the body's arguments
        self._named = False  # the body's call has begun
        self._at_start = True  # nothing told yet since the start, a thought or a call: blanks wait
        self._strips = False  # and are dropped, except at the very start
        self._blanks = ""

    def take(self, news: News) -> list[Event]:
        events = self.push(news.pieces if self._plan.marks.ids else [news.text])
        return events + (self.finish() if news.finish_reason is not None else [])

    def push(self, pieces: Sequence[Piece]) -> list[Event]:
        for piece in pieces:
            found = self._texts.push(piece) if isinstance(piece, str) else [*self._texts.flush(), piece]
            for one in found:
                self._state(one)
        return self._taken()

    def finish(self) -> list[Event]:
        """The answer ends here, of itself or cut."""
        held = self._texts.flush()
        if not (self._plan.demanded and self._state in (self._in_text, self._after_call)):
            for one in held:  # else it is half a mark
                self._state(one)
        if self._state == self._in_call and not self._named and not self._plan.demanded:
            self._not_a_call()
        if self._state == self._in_text and self._at_start and not (self._strips or self._plan.demanded):
            self._events += [Said(self._blanks)] if self._blanks else []  # an answer of blanks alone
        return self._taken()

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    # -- states -------------------------------------------------------------------------------------------------

    def _in_text(self, piece: Piece) -> None:
        call = self._plan.form.call if self._plan.names else None
        if self._plan.formatted and not self._at_start:
            self._say(piece.value if isinstance(piece, Mark) else piece)
        elif piece is Mark.THINK and self._plan.form.thinks:
            self._state = self._in_thought
            self._rest()
        elif isinstance(piece, Mark) and piece in (Mark.CALL, Mark.PYTHON) and call is not None:
            self._begin_call(piece.value)
        elif isinstance(piece, Mark):
            self._say(piece.value)
        elif call is not None and call.bare and self._at_start and piece.lstrip().startswith("{"):
            start = piece.index("{")
            self._say(piece[:start])
            self._begin_call()
            self._in_call(piece[start:])
        else:
            self._say(piece)

    def _in_thought(self, piece: Piece) -> None:
        if piece is Mark.END_THINK:
            self._state = self._in_text
            self._rest()
            return
        text = self._blanks + (piece.value if isinstance(piece, Mark) else piece)
        text = text.lstrip() if self._at_start else text
        kept = text.rstrip()
        self._blanks = text[len(kept) :]  # blanks at the end of a thought are part of the form
        if kept:
            self._at_start = False
            self._events.append(Thought(kept))

    def _in_call(self, piece: Piece) -> None:
        body = self._body
        if isinstance(piece, Mark):
            if not body.in_string:
                self._not_a_call()
                self._in_text(piece)
                return
            piece = piece.value
        if not body.raw:
            start = len(piece) - len(piece.lstrip())
            self._opening, piece = self._opening + piece[:start], piece[start:]
            if not piece:
                return
            if not piece.startswith("{"):
                self._not_a_call()
                self._in_text(piece)
                return
        left = body.push(piece)
        if self._plan.guaranteed:
            self._tell_call()
        if body.closed:
            self._end_call(left)

    def _after_call(self, piece: Piece) -> None:
        """Between calls: end marks, separators and blanks."""
        if piece in (Mark.END_CALL, Mark.PYTHON):
            return
        bare = self._plan.form.call is not None and self._plan.form.call.bare
        if isinstance(piece, str):
            piece = piece.lstrip(" \t\r\n;" if bare else None)
            if not piece:
                return
            if bare and piece.startswith("{"):
                self._begin_call()
                self._in_call(piece)
                return
        self._state = self._in_text
        self._in_text(piece)

    # -- parts --------------------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        """Blanks at the start of a text wait: before a call or after a thought they are part of the form."""
        if self._at_start:
            text = self._blanks + text
            if not text.strip():
                self._blanks = text
                return
            self._at_start, self._blanks = False, ""
            text = text.lstrip() if self._strips else text
        if text:
            self._events.append(Said(text))

    def _rest(self) -> None:
        """A thought or a call begins or ends: blanks here are part of the form."""
        self._at_start, self._blanks, self._strips = True, "", True

    def _begin_call(self, opening: str = "") -> None:
        self._state, self._body, self._told, self._named = self._in_call, CallBody(), 0, False
        self._opening = opening

    @property
    def _full(self) -> bool:
        return self._plan.most_calls is not None and self._num_calls >= self._plan.most_calls

    def _tell_call(self) -> None:
        body = self._body
        if not self._named and body.name is not None and body.name in self._plan.names and not self._full:
            self._named = True
            self._events.append(CallBegun(self._num_calls, f"call_{secrets.token_hex(12)}", body.name))
            self._num_calls += 1
        if self._named and (more := body.arguments[self._told :]):
            self._events.append(CallGrew(self._num_calls - 1, more))
            self._told = len(body.arguments)

    def _end_call(self, left: str) -> None:
        body = self._body
        if not body.parsed() or body.name not in self._plan.names:
            self._not_a_call()
            self._in_text(left)
            return
        body.arguments = body.arguments or "{}"
        self._tell_call()
        if self._named:
            self._events.append(CallEnded(self._num_calls - 1))
        self._state = self._after_call
        self._rest()
        if left:
            self._after_call(left)

    def _not_a_call(self) -> None:
        """What looked like a call is text after all, to the letter."""
        self._state = self._in_text
        if not self._named:
            self._say(self._opening + self._body.raw)


class AnswerReader:
    """The answers of one request, by choice. ``take`` says what is new; ``answers`` is all there was."""

    def __init__(self, plan: Reading | None = None) -> None:
        self._plan: Reading = plan or AnswerPlan()
        self._parsers: dict[int, NewsParser] = {}
        self.answers: dict[int, Answer] = {}

    def take(self, news: News) -> list[Event]:
        events = self._events(news)
        answer = self.of(news.index)
        for event in events:
            answer.take(event)
        return events

    def of(self, index: int) -> Answer:
        return self.answers.setdefault(index, Answer())

    def counted(self, usage: Usage, outputs: Sequence[RequestOutput]) -> Usage:
        """The usage with the thoughts' part in it."""
        counts = [self._plan.thought_tokens(choice.token_ids) for output in outputs for choice in output.outputs]
        known = [count for count in counts if count is not None]
        return replace(usage, thought_tokens=sum(known)) if known else usage

    def _events(self, news: News) -> list[Event]:
        if self._plan.plain:
            return [Said(news.text)] if news.text else []
        if news.index not in self._parsers:
            self._parsers[news.index] = self._plan.parser()
        return self._parsers[news.index].take(news)
