"""ThoughtCount: how many of an answer's tokens are thought. Reads ids alone: no cut of a stream makes a difference."""

from __future__ import annotations

from collections.abc import Sequence

from ..text.answer_forms import Mark, MarkTable
from ..text.text_marks import TextMarks
from ..text.tokenizer import Tokenizer

THOUGHTS = (Mark.THINK, Mark.END_THINK)


class ThoughtCount:
    """``marks``: as the answer is read with. ``in_thought``: the prompt has begun a thought."""

    def __init__(self, tokenizer: Tokenizer, marks: MarkTable, in_thought: bool) -> None:
        self._tokenizer, self._in_thought = tokenizer, in_thought
        self._ids = {index: mark for index, mark in marks.ids.items() if mark in THOUGHTS}
        self._texts = {text: mark for text, mark in marks.texts.items() if mark in THOUGHTS}

    def of(self, ids: Sequence[int]) -> int:
        """Tokens between the marks, and the marks; of a mark that several tokens spell, the last at its begin and all
        at its end."""
        inside, count, spelled = self._in_thought, 0, TextMarks(self._texts)
        for index in ids:
            touched = inside
            for mark in self._found(index, spelled):
                inside = mark is Mark.THINK
                touched |= inside
            count += touched
        return count

    def _found(self, index: int, spelled: TextMarks) -> list[Mark]:
        """Marks that end in this token. Marks are ASCII: whatever the bytes around them are makes no difference."""
        if index in self._ids:
            spelled.flush()
            return [self._ids[index]]
        if not self._texts:
            return []
        text = self._tokenizer.token_bytes(index).decode("latin-1")
        return [one for one in spelled.push(text) if isinstance(one, Mark)]
