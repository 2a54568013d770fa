"""What demanded calls, strict functions and thoughts allow, by the real compiler on a vocabulary of bytes."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from headrace.api.protocol.tools import AUTO, REQUIRED, Function, ToolWish
from headrace.api.text.answer_forms import HERMES, LLAMA3, AnswerForm
from headrace.contract.request import StructuredOutputs
from headrace.grammar.backend import Backend, Vocabulary

if find_spec("xgrammar") is None:
    pytest.skip("needs the grammar extra", allow_module_level=True)

END = 256
DIGIT = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
FUNCTIONS = (Function("f", parameters=DIGIT), Function('say "hi"'))
F = '<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call>'
HI = '<tool_call>\n{"name": "say \\"hi\\"", "arguments": {"a": [1, null]}}\n</tool_call>'
BARE = '{"name": "f", "parameters": {"n": 2}}'


@pytest.fixture(scope="module")
def backend() -> Backend:
    return Backend(Vocabulary([*(bytes([i]) for i in range(256)), b""], (END,)), 0)


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
    assert allows(backend, wish().constraint(AnswerForm(HERMES), False, None), text) is allowed


def test_one_call_or_one_function(backend: Backend) -> None:
    alone = wish(parallel=False).constraint(AnswerForm(HERMES), False, None)
    assert (allows(backend, alone, HI), allows(backend, alone, f"{F}\n{F}")) == (True, False)
    only = wish(only="f").constraint(AnswerForm(HERMES), False, None)
    assert (allows(backend, only, F), allows(backend, only, HI)) == (True, False)


def test_the_bare_form(backend: Backend) -> None:
    wanted = wish().constraint(AnswerForm(LLAMA3), False, None)
    assert allows(backend, wanted, BARE)
    assert not allows(backend, wanted, f"{BARE}; {BARE}")  # Llama 3's templates take no two calls back
    assert not allows(backend, wanted, F)


@pytest.mark.parametrize(("in_thought", "begin"), [(True, ""), (False, "<think>")])
def test_a_call_after_a_thought(backend: Backend, in_thought: bool, begin: str) -> None:
    wanted = wish().constraint(AnswerForm(HERMES, thinks=True), in_thought, None)
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
        wanted = nothing.constraint(form, True, formatted)
        assert allows(backend, wanted, f"because</think>\n\n{text}")
        assert not allows(backend, wanted, "because</think>\n\n?")
    assert nothing.constraint(form, False, formatted) == formatted


def test_a_format_or_a_call(backend: Backend) -> None:
    wanted = wish(AUTO).constraint(AnswerForm(HERMES), False, StructuredOutputs(choice=["yes"]))
    assert [allows(backend, wanted, text) for text in ("yes", F, "no", f"yes{F}")] == [True, True, False, False]


def test_a_strict_function_in_free_text(backend: Backend) -> None:
    strict = (Function("f", parameters=DIGIT, strict=True),)
    wanted = wish(AUTO, functions=strict).constraint(AnswerForm(HERMES), False, None)
    texts = ("hello", f"so: {F} and", F.replace("1", "3"), "<tool_call>no")
    assert [allows(backend, wanted, text) for text in texts] == [True, True, False, False]
    bare = wish(AUTO, functions=strict).constraint(AnswerForm(LLAMA3), False, None)
    assert [allows(backend, bare, text) for text in ("hello {", BARE, '{"a": 1}')] == [True, True, False]
    assert wish(AUTO).constraint(AnswerForm(HERMES), False, None) is None
    alone = wish(AUTO, functions=strict, parallel=False).constraint(AnswerForm(HERMES), False, None)
    assert [allows(backend, alone, text) for text in (f"so: {F}", f"{F}\n{F}")] == [True, False]
