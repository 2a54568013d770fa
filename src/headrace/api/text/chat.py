"""Messages to token ids, such that no text from a message becomes a control token.

The template puts control tokens between the messages; a user who writes ``<|im_end|>`` must not. So control
spellings inside messages, tools and variables are broken up with a private mark before rendering. In the rendering, a
spelling without marks comes from the template and one with marks from a message, wherever the template
moved it. Where no message holds a control spelling, the ids are those of the plain rendering.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.contract.errors import InvalidRequest

from .budget import RenderLimits
from .specials import SpecialMatcher
from .template import NO_TEMPLATE, Message, render_chat
from .tokenizer import Tokenizer

HOLDER = "\U0010fffd"  # stands for a picture until everything else is settled; no text of a message may hold it
PRIVATE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE))
EDGED = ("content", "text")


def encode_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    template: str | None = None,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
    limits: RenderLimits | None = None,
    context: int | None = None,
    picture: str | None = None,
) -> list[int]:
    """Prompt ids of a conversation under ``template`` (default: the model's own). ``picture``: the control token that
    takes the place of every ``HOLDER``; None where there are none.

    Exactly one BOS where the model wants one, whether the template writes it or not. Raises as
    ``render_chat``, and InvalidRequest for what is plainly too long for ``context`` tokens, before it is tokenized.
    """

    if picture is not None and not (template or tokenizer.chat_template):
        raise InvalidRequest("messages", f"{NO_TEMPLATE}; pictures go with LLM.generate only then")

    def render(said: Any, offered: Any, told: Any) -> str:
        rendered = render_chat(
            template or tokenizer.chat_template,
            said,
            bos="" if tokenizer.bos_id is None else tokenizer.token_text(tokenizer.bos_id),
            eos=tokenizer.token_text(tokenizer.eos_ids[0]) if tokenizer.eos_ids else "",
            add_generation_prompt=add_generation_prompt,
            tools=offered,
            variables=told,
            limits=limits,
        )
        return rendered if picture is None else rendered.replace(HOLDER, picture)

    plain = render(messages, tools, variables)
    if context is not None:
        tokenizer.check_fits("messages", plain, context)
    mark = _unused_mark(plain, [messages, tools, variables])
    marked = plain
    for edges in (True, False):
        guard = _Guard(tokenizer.specials, mark, edges)
        guarded = [guard.value(value) for value in (messages, tools, variables)]
        marked = render(*guarded).replace(_escaped(mark), mark)
        if marked.replace(mark, "") == plain:
            break
    return tokenizer.with_bos(_encode_marked(tokenizer, plain, marked, mark))


def _encode_marked(tokenizer: Tokenizer, plain: str, marked: str, mark: str) -> list[int]:
    """Ids of ``marked`` without its marks, control tokens only where no mark splits the spelling."""
    cuts = list(tokenizer.specials.find(marked))
    if marked.replace(mark, "") == plain and len(cuts) == sum(1 for _ in tokenizer.specials.find(plain)):
        return tokenizer.encode(plain, add_special=False)
    ids: list[int] = []
    pos = 0
    for start, end in [*cuts, (len(marked), len(marked))]:
        text = marked[pos:start].replace(mark, "")
        ids += tokenizer.encode(text, add_special=False, parse_special=False)
        ids += tokenizer.encode(marked[start:end], add_special=False)
        pos = end
    return ids


def _unused_mark(plain: str, values: list[Any]) -> str:
    """A private-use character that occurs nowhere in the input, nor in what the template writes itself."""
    used = set(plain).union(*(set(text) for text in _strings(values)))
    free = (chr(code) for block in PRIVATE for code in block if chr(code) not in used)
    mark = next((mark for mark in free if _escaped(mark) not in plain), None)
    if mark is None:
        raise InvalidRequest("messages", "every private-use character is taken")
    return mark


def _escaped(mark: str) -> str:
    """The mark as JSON writes it in pure ASCII, which a template may ask for."""
    return json.dumps(mark)[1:-1]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)


class _Guard:
    """Copies messages with marks in them.

    Marks go after each character of a control spelling (of two or more characters; families with
    one-character control tokens are not known). With ``edges`` they also go around each content, so that
    two contents side by side cannot complete a spelling between them; inside its outer white space, so that
    a template may trim it. Templates that look at a content's first or last characters can be misled by
    that, which shows in the rendering; then the edges are left out.
    """

    def __init__(self, specials: SpecialMatcher, mark: str, edges: bool) -> None:
        self.specials, self.mark, self.edges = specials, mark, edges

    def value(self, value: Any, key: str = "") -> Any:
        if isinstance(value, str):
            return self.text(value, edged=self.edges and key in EDGED)
        if isinstance(value, Mapping):
            return {self.key(name): self.value(item, str(name)) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item, key) for item in value]
        return value

    def key(self, name: Any) -> Any:
        return self.text(name, edged=False) if isinstance(name, str) else name

    def text(self, text: str, *, edged: bool) -> str:
        parts, pos = [], 0
        for start, end in self.specials.find(text):
            parts += [text[pos:start], *(char + self.mark for char in text[start:end])]
            pos = end
        broken = "".join([*parts, text[pos:]])
        return self.with_edges(broken) if edged else broken

    def with_edges(self, text: str) -> str:
        core = text.strip()
        if not core:
            return text
        start = text.index(core)
        return f"{text[:start]}{self.mark}{core}{self.mark}{text[start + len(core) :]}"
