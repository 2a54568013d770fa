"""Answers taken apart: however the text is cut, the same parts; and nothing half-made is told as whole."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.output import CompletionOutput, RequestOutput
from headrace.api.protocol.answer import Answer
from headrace.api.protocol.answer_parser import AnswerParser, AnswerPlan
from headrace.api.protocol.call_body import CallBody
from headrace.api.protocol.messages_reply import MessagesReply
from headrace.api.protocol.news import News, Usage
from headrace.api.protocol.sse import to_json
from headrace.api.text.answer_forms import HERMES, LLAMA3, AnswerForm, CallForm, Mark, MarkTable, find_form
from headrace.api.text.text_marks import Piece, TextMarks

TEXTS = MarkTable(texts={m.value: m for m in (Mark.THINK, Mark.END_THINK, Mark.CALL, Mark.END_CALL)})
FULL = AnswerForm(HERMES, thinks=True)
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "x</tool_call>{\\"y"}}\n</tool_call>'


def read(pieces: list[Piece], plan: AnswerPlan) -> Answer:
    parser, answer = AnswerParser(plan), Answer()
    events = [event for piece in pieces for event in parser.push([piece])] + parser.finish()
    for event in events:
        answer.take(event)
    return answer


def parts(answer: Answer) -> tuple[str, str, list[tuple[str, str, bool]]]:
    return answer.content, answer.reasoning, [(c.name, c.arguments, c.complete) for c in answer.calls]


WHOLE = f"<think>\nwhy {{</think>\n\nSo: {CALL}\n{CALL}\n"
ANSWERS = [
    WHOLE,
    "  plain text\n",
    "a<tool_call>\nno json</tool_call>b",
    '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
    '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>',
    '<tool_call>{"name": "f", "argum',
    '<tool_call>{"name": "f", "arguments": {"a": 1}, "arguments": {"b": 2}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": 1}, "parameters": {}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 60 + "]" * 60 + "}}</tool_call>",
    '<tool_call>{"name": ' + "[" * 20_000 + "]" * 20_000 + ', "arguments": {}}</tool_call>',
    "<think>never ends",
    "</think>stray <tool",
]


@given(st.sampled_from(ANSWERS), st.lists(st.integers(1, 9)), st.booleans())
def test_cuts_change_nothing(text: str, cuts: list[int], guaranteed: bool) -> None:
    plan = AnswerPlan(FULL, TEXTS, {"f"}, guaranteed)
    pieces, rest = list[Piece](), text
    for cut in cuts:
        pieces, rest = [*pieces, rest[:cut]], rest[cut:]
    assert parts(read([*pieces, rest], plan)) == parts(read([text], plan))


BARE = [
    "  {no call}",
    '\n {"name": "f", "parameters": {}}',
    '{"name": "other"} x',
    '{"name": "f", "parameters": {}}; {"name": "f"}; { no',
    " \n",
    '<|python_tag|> {"name": "other"}',
]


@given(st.sampled_from(BARE), st.lists(st.integers(1, 9)), st.booleans())
def test_cuts_change_nothing_in_the_bare_form(text: str, cuts: list[int], guaranteed: bool) -> None:
    marks = MarkTable(texts={Mark.PYTHON.value: Mark.PYTHON})
    plan = AnswerPlan(AnswerForm(LLAMA3), marks, {"f"}, guaranteed)
    pieces, rest = list[Piece](), text
    for cut in cuts:
        pieces, rest = [*pieces, rest[:cut]], rest[cut:]
    whole = parts(read([text], plan))
    assert parts(read([*pieces, rest], plan)) == whole
    if not whole[2]:
        assert whole[0] == text


def test_thoughts_text_and_calls_are_told_apart() -> None:
    content, reasoning, calls = parts(read([WHOLE], AnswerPlan(FULL, TEXTS, {"f"})))
    assert (content, reasoning) == ("So: ", "why {")
    assert [(name, json.loads(arguments), done) for name, arguments, done in calls] == [
        ("f", {"a": 'x</tool_call>{"y'}, True)
    ] * 2


@pytest.mark.parametrize("text", [ANSWERS[i] for i in (2, 3, 4, 6, 7, 8, 9, 10)])
def test_what_is_no_call_stays_text_to_the_letter(text: str) -> None:
    answer = read([text], AnswerPlan(FULL, TEXTS, {"f"}))
    assert answer.calls == []
    assert answer.content == text
    assert answer.finish_reason("stop") == "stop"


def test_half_a_pair_in_arguments_can_be_told_as_an_object() -> None:
    said = '<tool_call>{"name": "f", "arguments": {"\\ud83d\\ude00": "a\\ud800b", "n": 1e999}}</tool_call>'
    reply = MessagesReply("msg_1", "m", AnswerPlan(FULL, TEXTS, {"f"}))
    reply.note(News(0, said, [1], finish_reason="stop"))
    choice = CompletionOutput(0, finish_reason="stop")
    whole = json.loads(to_json(reply.whole([RequestOutput("r", None, [1], [choice])], Usage(1, 1, 0))))
    assert whole["stop_reason"] == "tool_use"
    assert whole["content"][0]["input"] == {"😀": "a\ufffdb", "n": None}


def test_a_guaranteed_call_is_told_as_it_grows_and_complete_only_at_its_end() -> None:
    plan = AnswerPlan(FULL, TEXTS, {"f"}, guaranteed=True)
    for length in range(len(CALL) + 1):
        answer = read(list(CALL[:length]), plan)
        assert len(answer.calls) <= 1
        if answer.finish_reason("stop") == "tool_calls":
            json.loads(answer.calls[0].arguments)
    assert answer.finish_reason("stop") == "tool_calls"
    assert answer.finish_reason("length") == "length"


def test_marks_that_are_tokens_are_not_found_in_text() -> None:
    marks = MarkTable(ids={1: Mark.THINK, 2: Mark.END_THINK})
    plan = AnswerPlan(AnswerForm(None, thinks=True), marks)
    answer = read([Mark.THINK, "a</think>", "b", Mark.END_THINK, "\n\nc<think>"], plan)
    assert parts(answer) == ("c<think>", "a</think>b", [])


@pytest.mark.parametrize(
    ("marks", "inner"),
    [
        (TEXTS, "<tool_call> and <think>"),
        (MarkTable({1: Mark.CALL}), Mark.CALL),
        (MarkTable({1: Mark.THINK}), Mark.THINK),
    ],
    ids=str,
)
def test_inside_a_format_marks_are_text(marks: MarkTable, inner: Piece) -> None:
    plan = AnswerPlan(FULL, marks, {"f"}, guaranteed=True, formatted=True)
    spelled = inner if isinstance(inner, str) else inner.value
    assert parts(read(['{"a": "', inner, '"}'], plan)) == (f'{{"a": "{spelled}"}}', "", [])


def test_a_thought_that_the_prompt_began() -> None:
    plan = AnswerPlan(AnswerForm(None, thinks=True), TEXTS, in_thought=True)
    assert parts(read(["hm\n</think>\n\nyes"], plan)) == ("yes", "hm", [])


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('{"name": "f", "parameters": {"a": 1}}', ["f"]),
        ('{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', ["f", "g"]),
        ('{"name": "nobody", "parameters": {}}', []),
        ('see {"name": "f", "parameters": {}}', []),
    ],
)
def test_the_bare_form(text: str, names: list[str]) -> None:
    answer = read([text], AnswerPlan(AnswerForm(LLAMA3), MarkTable(), {"f", "g"}))
    assert [call.name for call in answer.calls] == names
    assert bool(answer.content) == (not names)


@pytest.mark.parametrize("length", range(26))
def test_an_answer_in_a_format_is_no_call_of_a_function_that_nobody_offered(length: int) -> None:
    text = '{"name": "Bob", "age": 3}'[:length]
    for form in (LLAMA3, HERMES):
        answer = read(list(text), AnswerPlan(AnswerForm(form), MarkTable(), {"f"}, guaranteed=True))
        assert parts(answer) == (text, "", [])


@pytest.mark.parametrize("guaranteed", [False, True])
def test_calls_beyond_the_most_are_dropped(guaranteed: bool) -> None:
    plan = AnswerPlan(FULL, TEXTS, {"f"}, guaranteed, most_calls=1)
    answer = read([f"{CALL}\n{CALL}"], plan)
    assert len(answer.calls) == 1
    assert (answer.content, answer.finish_reason("stop")) == ("", "tool_calls")


def test_forms_are_found_from_templates() -> None:
    assert find_form("{{ messages }}") == AnswerForm(HERMES)
    assert find_form("{% if tools %}<tool_call>{% endif %}</think>") == AnswerForm(HERMES, True, True)
    assert find_form('{{ tools }}<|start_header_id|>{"name": f, "parameters": x}').call == LLAMA3
    assert find_form("{{ tools }}[TOOL_CALLS]").call is None
    assert find_form(None) == AnswerForm()


@given(st.text(alphabet='ab<>/tool_cal"{', max_size=40), st.lists(st.integers(1, 5)))
def test_text_marks_do_not_depend_on_cuts(text: str, cuts: list[int]) -> None:
    def found(pieces: list[str]) -> list[str]:
        marks = TextMarks({"<tool>": Mark.CALL, "</tool>": Mark.END_CALL, "<to": Mark.THINK})
        out = [one for piece in pieces for one in marks.push(piece)] + marks.flush()
        text, told = "", list[str]()
        for one in out:
            if isinstance(one, Mark):
                told, text = [*told, text, one.value], ""
            else:
                text += one
        return [*told, text]

    pieces, rest = list[str](), text
    for cut in cuts:
        pieces, rest = [*pieces, rest[:cut]], rest[cut:]
    assert found([*pieces, rest]) == found([text])


@given(st.recursive(st.none() | st.text() | st.integers(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_any_arguments_come_out_as_they_went_in(value: object) -> None:
    body = CallBody()
    left = body.push(json.dumps({"name": 'a"}{', "more": [value], "arguments": {"v": value}}) + " rest")
    assert (body.closed, body.name, left) == (True, 'a"}{', " rest")
    assert json.loads(body.arguments) == {"v": value}


FRAGMENTS = [
    "<tool_call>",
    "</tool_call>",
    " ",
    "\n",
    "\n\n",
    "{",
    "}",
    '{"name": "g", "arguments": {}}',
    "no json",
    '"',
    "é",
]


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=8), st.sampled_from([HERMES, LLAMA3]), st.booleans())
def test_nothing_of_what_is_no_call_is_lost_or_added(fragments: list[str], call: CallForm, guaranteed: bool) -> None:
    """Also the blanks behind a mark, or before a brace, that would have been a call's."""
    text = "".join(fragments)
    marks = MarkTable(texts={mark.value: mark for mark in AnswerForm(call).marks})
    plan = AnswerPlan(AnswerForm(call), marks, {"f"}, guaranteed)
    assert read([text], plan).content == text
    assert read(list(text), plan).content == text
