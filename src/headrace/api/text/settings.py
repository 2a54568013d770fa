"""What is known of a tokenizer besides its vocabulary: the ids with a meaning, and the chat template."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .pieces import PieceRule

END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)
"""Control tokens that end an answer in the common families. GGUF files often name only one of a model's
two.
"""

ANSWER_MARKS = frozenset(
    ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<|python_tag|>")
)
"""Tokens that shape an answer. Vocabularies often do not call them special; text from outside must not yield them all
the same.
"""


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """``prefix``/``suffix``: ids put around a text. ``eos_ids``: any of them ends an answer; the first is
    "the" EOS.
    """

    rule: PieceRule
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    unk_id: int | None = None
    chat_template: str | None = None


def distinct(ids: Iterable[int | None]) -> tuple[int, ...]:
    """The ids without None and repetitions, in order."""
    return tuple(dict.fromkeys(i for i in ids if i is not None))
