"""What demanded calls, strict functions and thoughts allow, by the real compiler on a vocabulary of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from extras import needs_compiler

from headrace.api.protocol.tools import AUTO, REQUIRED, Function, ToolWish
from headrace.api.text.answer_forms import HERMES, LLAMA3, AnswerForm, Mark, MarkTable
from headrace.contract.request import StructuredOutputs
from headrace.grammar.backend import NO_TEXT, Backend, Matcher, Vocabulary
from headrace.grammar.mask import allowed, empty_words

pytestmark = needs_compiler

END = 256
DIGIT = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
FUNCTIONS = (Function("f", parameters=DIGIT), Function('say "hi"'))
F = '<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call>'
HI = '<tool_call>\n{"name": "say \\"hi\\"", "arguments": {"a": [1, null]}}\n</tool_call>'
BARE = '{"name": "f", "parameters": {"n": 2}}'


@pytest.fixture(scope="module")
def backend() -> Backend:
    return Backend(Vocabulary([*(bytes([i]) for i in range(256)), b""], (END,)))


def allows(backend: Backend, wanted: StructuredOutputs | None, text: str) -> bool:
    """Whether ``text`` is a whole answer."""
    assert wanted is not None
    wanted.check()
    matcher = backend.matcher(backend.compile(wanted))
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.accept(END)


def wish(choice: str = REQUIRED, **more: Any) -> ToolWish:
    return ToolWish(**{"functions": FUNCTIONS, "choice": choice} | more)


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        (F, True),
        (HI, True),
        (f"{F}\n{HI}", True),
        ("", False),
        ("hello", False),
        (f"{F}{F}", False),
        (F.replace("1", "3"), False),
        (F.replace('"f"', '"g"'), False),
        (F[:-1], False),
    ],
)
def test_demanded_calls(backend: Backend, text: str, allowed: bool) -> None:
    assert allows(backend, wish().constraint(AnswerForm(HERMES), False, None, MarkTable()), text) is allowed


def test_one_call_or_one_function(backend: Backend) -> None:
    alone = wish(parallel=False).constraint(AnswerForm(HERMES), False, None, MarkTable())
    assert (allows(backend, alone, HI), allows(backend, alone, f"{F}\n{F}")) == (True, False)
    only = wish(only="f").constraint(AnswerForm(HERMES), False, None, MarkTable())
    assert (allows(backend, only, F), allows(backend, only, HI)) == (True, False)


def test_the_bare_form(backend: Backend) -> None:
    wanted = wish().constraint(AnswerForm(LLAMA3), False, None, MarkTable())
    assert allows(backend, wanted, BARE)
    assert not allows(backend, wanted, f"{BARE}; {BARE}")  # Llama 3's templates take no two calls back
    assert not allows(backend, wanted, F)


@pytest.mark.parametrize(("in_thought", "begin"), [(True, ""), (False, "<think>")])
def test_a_call_after_a_thought(backend: Backend, in_thought: bool, begin: str) -> None:
    wanted = wish().constraint(AnswerForm(HERMES, thinks=True), in_thought, None, MarkTable())
    assert allows(backend, wanted, f"{begin}hm <tool_call></think>\n\n{F}")
    assert allows(backend, wanted, F) is not in_thought  # a thought that the prompt began must end
    assert not allows(backend, wanted, f"{begin}hm</think>so {F}")


def test_a_format_after_a_thought_that_the_prompt_began(backend: Backend) -> None:
    nothing, form = ToolWish(), AnswerForm(HERMES, thinks=True)
    for formatted, text in (
        (StructuredOutputs(json=DIGIT), '{"n": 1}'),
        (StructuredOutputs(json_object=True), '{"a": {}}'),
        (StructuredOutputs(regex="[ab]{2}"), "ab"),
        (StructuredOutputs(choice=["yes", "no"]), "no"),
        (StructuredOutputs(grammar='root ::= "x" [0-9]'), "x7"),
    ):
        wanted = nothing.constraint(form, True, formatted, MarkTable())
        assert allows(backend, wanted, f"because</think>\n\n{text}")
        assert not allows(backend, wanted, "because</think>\n\n?")
    assert nothing.constraint(form, False, formatted, MarkTable()) == formatted


def test_a_format_or_a_call(backend: Backend) -> None:
    wanted = wish(AUTO).constraint(AnswerForm(HERMES), False, StructuredOutputs(choice=["yes"]), MarkTable())
    assert [allows(backend, wanted, text) for text in ("yes", F, "no", f"yes{F}")] == [True, True, False, False]


CALL_ID, END_CALL_ID, THINK_ID, END_THINK_ID = TOKENS = 257, 258, 259, 260
MARKS = MarkTable(dict(zip(TOKENS, (Mark.CALL, Mark.END_CALL, Mark.THINK, Mark.END_THINK))))


@pytest.fixture(scope="module", params=[b"", NO_TEXT], ids=["plain", "special"])
def marked(request: pytest.FixtureRequest) -> Backend:
    spelled = [request.param + mark.value.encode() for mark in MARKS.ids.values()]
    return Backend(Vocabulary([*(bytes([i]) for i in range(256)), b"", *spelled], (END,)))


def may_follow(matcher: Matcher) -> set[int]:
    words = empty_words(END + 5)
    matcher.fill(words)
    return set(np.flatnonzero(allowed(words, END + 5)).tolist())


def test_tokens_bound_a_thought_and_a_call(marked: Backend) -> None:
    """The only way in, out and on; also after the way there was taken back."""
    wanted = wish(only="f").constraint(AnswerForm(HERMES, thinks=True), False, None, MARKS)
    assert wanted is not None
    matcher, before, inside = marked.matcher(marked.compile(wanted)), b"a</think>\n\t<tool_call>\n{", F[11:-12].encode()
    ids = [THINK_ID, *before, END_THINK_ID, *b"\n", CALL_ID, *inside, END_CALL_ID, END]
    for _ in range(2):
        assert may_follow(matcher) == {THINK_ID, CALL_ID}
        for at, index in enumerate(ids):
            if at == 1 + len(before):
                assert may_follow(matcher) > {END_THINK_ID, CALL_ID, THINK_ID, *b"a<"}
                assert END not in may_follow(matcher)
            elif index in (END_CALL_ID, END):
                assert may_follow(matcher) == {index}
            assert matcher.accept(index)
        assert matcher.ended
        matcher.rollback(len(ids))


def test_tokens_bound_calls_of_strict_functions_in_free_text(marked: Backend) -> None:
    strict = tuple(Function(name, parameters=DIGIT, strict=True) for name in "fg")
    wanted = wish(AUTO, functions=strict).constraint(AnswerForm(HERMES, thinks=True), False, None, MARKS)
    assert wanted is not None
    compiled = marked.compile(wanted)
    inside = F[11:-12].encode()
    for call in (inside, inside.replace(b'"f"', b'"g"')):
        matcher = marked.matcher(compiled)
        assert all(matcher.accept(index) for index in (*b"so <tool_call>", CALL_ID, *call, END_CALL_ID, *b"<", END))
    matcher = marked.matcher(compiled)
    assert matcher.accept(CALL_ID)
    assert may_follow(matcher) == {ord("\n")}
    assert not any(matcher.accept(index) for index in (*b"{n<", END))
    matcher = marked.matcher(compiled)
    assert matcher.accept(ord("x"))
    assert not matcher.accept(THINK_ID)


def test_no_letters_begin_a_call_or_a_thought_beside_strict_functions(backend: Backend) -> None:
    strict = (Function("f", parameters=DIGIT, strict=True),)
    for call_form, mark in ((HERMES, Mark.THINK), (LLAMA3, Mark.PYTHON)):
        form = AnswerForm(call_form, thinks=call_form is HERMES)
        marks = MarkTable(texts={mark.value: mark for mark in form.marks})
        wanted = wish(AUTO, functions=strict).constraint(form, False, None, marks)
        texts = ("so <b> it goes", "<b>", f"so {mark.value}", f"{mark.value}x")
        assert [allows(backend, wanted, text) for text in texts] == [True, True, False, False]


def test_a_strict_function_in_free_text(backend: Backend) -> None:
    strict = (Function("f", parameters=DIGIT, strict=True),)
    wanted = wish(AUTO, functions=strict).constraint(AnswerForm(HERMES), False, None, MarkTable())
    texts = ("hello", f"so: {F} and", F.replace("1", "3"), "<tool_call>no")
    assert [allows(backend, wanted, text) for text in texts] == [True, True, False, False]
    bare = wish(AUTO, functions=strict).constraint(AnswerForm(LLAMA3), False, None, MarkTable())
    assert [allows(backend, bare, text) for text in ("hello {", BARE, '{"a": 1}')] == [True, True, False]
    assert wish(AUTO).constraint(AnswerForm(HERMES), False, None, MarkTable()) is None
    alone = wish(AUTO, functions=strict, parallel=False).constraint(AnswerForm(HERMES), False, None, MarkTable())
    assert [allows(backend, alone, text) for text in (f"so: {F}", f"{F}\n{F}")] == [True, False]
