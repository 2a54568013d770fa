"""Structured outputs over HTTP, compiled by the real compiler; the model knows nothing, so all form comes from it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from extras import needs_compiler
from served import Running, dummy_llm, running

pytestmark = needs_compiler

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "maximum": 99, "minimum": 1},
    },
    "required": ["name", "age"],
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("tiny")
    with running(lambda: dummy_llm(folder, kv_dtype="float32")) as made:
        made.complete("warm", max_tokens=2, structured_outputs={"choice": ["a"]})  # loads the compiler
        yield made


def text_of(server: Running, **fields: Any) -> str:
    fields = {"max_tokens": 300, "temperature": 1, "seed": 5} | fields
    choice = server.complete("x", **fields).json()["choices"][0]
    assert choice["finish_reason"] == "stop", choice
    text = choice["text"]
    assert isinstance(text, str)
    return text


def refused(server: Running, param: str, **fields: Any) -> str:
    """Refused as 400, whole and streamed, and the next request is served."""
    for stream in (False, True):
        response = server.complete("x", stream=stream, **fields)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param
    assert server.complete("x", max_tokens=1).status_code == 200
    message = response.json()["error"]["message"]
    assert isinstance(message, str)
    return message


@pytest.mark.parametrize("seed", range(4))
def test_outputs_have_the_form_asked_for(tiny: Running, seed: int) -> None:
    formatted = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    person = json.loads(text_of(tiny, seed=seed, response_format=formatted))
    assert set(person) == {"name", "age"}
    assert 1 <= person["age"] <= 99
    assert re.fullmatch(r"a{2,4}[0-9]{3}", text_of(tiny, seed=seed, structured_outputs={"regex": "a{2,4}[0-9]{3}"}))
    assert text_of(tiny, seed=seed, structured_outputs={"choice": ['say "yes"', "no\n", "ünsicher"]}) in (
        'say "yes"',
        "no\n",
        "ünsicher",
    )
    ebnf = 'root ::= "<" [a-c]+ ">" | root2\nroot2 ::= "!"'
    assert re.fullmatch(r"<[a-c]+>|!", text_of(tiny, seed=seed, structured_outputs={"grammar": ebnf}))


def test_streamed_equals_whole_and_logprobs_stay_raw(tiny: Running) -> None:
    body = {"prompt": "x", "structured_outputs": {"regex": "[ab]{6}"}, "seed": 1, "logprobs": 0, "max_tokens": 20}
    whole = tiny.post(TEXT, body).json()["choices"][0]
    events = tiny.stream(TEXT, body)
    assert "".join(c["text"] for e in events for c in e["choices"]) == whole["text"]
    free = tiny.complete(f"x{whole['text']}", prompt_logprobs=0, max_tokens=1).json()["choices"][0]["prompt_logprobs"]
    scored = [next(iter(entry.values()))["logprob"] for entry in free[1:]]
    assert whole["logprobs"]["token_logprobs"][:6] == scored


def test_others_are_bit_equal_beside_a_structured_request(tiny: Running) -> None:
    body = {"prompt": "free", "max_tokens": 60, "temperature": 1, "seed": 3, "logprobs": 1}
    alone = tiny.post(TEXT, body).json()["choices"]
    with tiny.http.stream("POST", TEXT, json={**body, "stream": True}) as response:
        lines = response.iter_lines()
        next(lines)
        text_of(tiny, structured_outputs={"regex": "[ab]{6}"})
        for _ in lines:
            pass
    both = tiny.post(TEXT, {**body, "prompt": ["free", "free"]}).json()["choices"]
    assert both[0]["logprobs"] == alone[0]["logprobs"]


BAD_SCHEMAS: list[Any] = [
    {"type": "strin"},
    {"$ref": "#/nope"},
    False,
    {"enum": []},
    {"pattern": "(", "type": "string"},
]


@pytest.mark.parametrize("schema", BAD_SCHEMAS, ids=str)
def test_s6_an_impossible_schema_is_refused_by_name(tiny: Running, schema: Any) -> None:
    refused(tiny, "response_format", response_format={"type": "json_schema", "json_schema": {"schema": schema}})
    refused(tiny, "structured_outputs", structured_outputs={"json": schema})


@pytest.mark.parametrize("regex", ["(", "a{2", "[", "(?=a)b"])
def test_s6_an_impossible_regex_is_refused_by_name(tiny: Running, regex: str) -> None:
    refused(tiny, "structured_outputs", structured_outputs={"regex": regex})


@pytest.mark.parametrize("low", [{}, {"minimum": 0}], ids=["open", "bounded"])
def test_s7_large_numbers_in_schemas(tiny: Running, low: dict[str, int]) -> None:
    large = {"type": "integer", "maximum": 20_000_000_000} | low
    for seed in range(4):
        value = int(text_of(tiny, structured_outputs={"json": large}, seed=seed))
        assert low.get("minimum", value) <= value <= 20_000_000_000


def test_s7_numbers_beyond_all_bounds_in_schemas(tiny: Running) -> None:
    for raw in (
        '{"json": {"type": "number", "maximum": 1e400}}',
        '{"json": "{\\"type\\": \\"number\\", \\"maximum\\": 1e400}"}',
    ):
        body = f'{{"prompt": "x", "max_tokens": 30, "structured_outputs": {raw}}}'
        response = tiny.http.post(TEXT, content=body, headers={"content-type": "application/json"})
        assert response.status_code in (200, 400)
    assert tiny.complete("x", max_tokens=1).status_code == 200


@pytest.mark.parametrize("closed", [True, False])
def test_s9_a_grammar_nested_60000_deep_is_refused(tiny: Running, closed: bool) -> None:
    grammar = "root ::= " + "(" * 60_000 + ('"a"' + ")" * 60_000 if closed else "")
    refused(tiny, "structured_outputs", structured_outputs={"grammar": grammar})


LOOPS: list[dict[str, Any]] = [
    {"grammar": "root ::= root"},
    {"grammar": "root ::= a\na ::= b\nb ::= a"},
    {"json": {"allOf": [{"$ref": "#"}]}},
    {"json": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}},
]


@pytest.mark.parametrize("wanted", LOOPS, ids=str)
def test_what_leads_only_to_itself_is_refused_and_no_fault_of_the_server(tiny: Running, wanted: dict[str, Any]) -> None:
    assert refused(tiny, "structured_outputs", structured_outputs=wanted) == "structured_outputs: no text satisfies it"


def test_choices_hold_any_character_but_nul(tiny: Running) -> None:
    for text in ("\x07 \x1f", "\u2028\x7f\x80", "😀", 'a"b\\c\r\t'):
        assert text_of(tiny, structured_outputs={"choice": [text]}) == text
    assert "NUL" in refused(tiny, "structured_outputs", structured_outputs={"choice": ["a\0b"]})


@pytest.mark.parametrize("grammar", ['foo ::= "a"', 'Root ::= "a"', "", "root ::= nope"])
def test_s11_a_grammar_without_a_root_is_refused(tiny: Running, grammar: str) -> None:
    refused(tiny, "structured_outputs", structured_outputs={"grammar": grammar})


def test_s13_a_model_that_loves_line_feeds_cannot_print_them_for_ever(tiny: Running) -> None:
    line_feed = tiny.post("/tokenize", {"prompt": "\n"}).json()["tokens"][0]
    long = {"type": "object", "properties": {"text": {"type": "string", "minLength": 200}}, "required": ["text"]}
    for formatted, runs, reason in (
        ({"type": "json_object"}, 1, "stop"),
        ({"type": "json_schema", "json_schema": {"name": "long", "schema": long}}, 3, "length"),
    ):
        fields = {"response_format": formatted, "logit_bias": {str(line_feed): 100}, "max_tokens": 120}
        choice = tiny.complete("x", **fields, temperature=0).json()["choices"][0]
        text = choice["text"]
        assert choice["finish_reason"] == reason
        assert text.count("\n" * 20) == runs  # it does love them
        assert "\n" * 21 not in text
        assert text.startswith("{\n")
        assert is_object(text if reason == "stop" else text + '"}')  # it was cut inside the string


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def test_a_request_that_excludes_every_allowed_token_ends_alone(tiny: Running) -> None:
    body = {
        "structured_outputs": {"regex": "[a]+"},
        "banned_token_ids": tiny.post("/tokenize", {"prompt": "a"}).json()["tokens"],
    }
    assert refused(tiny, "structured_outputs", **body).startswith("structured_outputs: no token satisfies")


def test_a_grammar_that_takes_too_long_to_follow_is_the_request_s_fault(
    tiny: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.grammar.matching.BURST_S", -1.0)  # from the first token on
    words = "takes too long to follow: text can be read in too many ways; make it simpler"
    formatted = {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA}}
    for field, value in (("structured_outputs", {"regex": "[ab]{6}"}), ("response_format", formatted)):
        response = tiny.complete("x", **{field: value})
        assert (response.status_code, response.json()["error"]["message"]) == (400, f"{field}: {words}")
        assert response.json()["error"]["param"] == field
    assert tiny.complete("x", max_tokens=1).status_code == 200
    monkeypatch.undo()
    text_of(tiny, structured_outputs={"regex": "[ab]{6}"})


def test_a_grammar_that_accepts_nothing_ends_alone(tiny: Running) -> None:
    response = tiny.complete("x", structured_outputs={"grammar": "root ::= root"})
    assert response.status_code in (400, 500)
    assert tiny.complete("x", max_tokens=1).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        ({"structured_outputs": {"xml": 1}}, "structured_outputs.xml"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": [5]}}, "structured_outputs.choice"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "min_tokens": 3}, "min_tokens"),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos"),
    ],
)
def test_malformed_wishes_are_refused_by_name(tiny: Running, fields: Any, param: str) -> None:
    refused(tiny, param, **fields)


def test_chat_and_responses_take_formats_too(tiny: Running) -> None:
    formatted = {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA, "strict": True}}
    body = {"messages": [{"role": "user", "content": "x"}], "response_format": formatted, "max_tokens": 300}
    assert set(json.loads(tiny.post(CHAT, body).json()["choices"][0]["message"]["content"])) == {"name", "age"}
    flat = {"format": {"type": "json_schema", "name": "p", "schema": SCHEMA}}
    answer = tiny.post("/v1/responses", {"input": "x", "text": flat, "max_output_tokens": 300}).json()
    assert set(json.loads(answer["output"][0]["content"][0]["text"])) == {"name", "age"}
    refused_format = {"format": {"type": "json_schema", "name": "p", "schema": {"type": "strin"}}}
    response = tiny.post("/v1/responses", {"input": "x", "text": refused_format})
    assert response.json()["error"]["param"] == "text.format"


def test_a_message_takes_a_format_too(tiny: Running) -> None:
    config = {"format": {"type": "json_schema", "schema": SCHEMA}, "effort": "low"}
    body = {"messages": [{"role": "user", "content": "x"}], "output_config": config, "max_tokens": 300, "top_k": 50}
    answer = tiny.post("/v1/messages", body).json()
    assert set(json.loads(answer["content"][0]["text"])) == {"name", "age"}
    told = [json.loads(one) for one in tiny.raw_stream("/v1/messages", body)]
    text = "".join(e["delta"]["text"] for e in told if e["type"] == "content_block_delta")
    assert set(json.loads(text)) == {"name", "age"}
    for schema in ({"type": "strin"}, None):
        body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        for stream in (False, True):
            response = tiny.post("/v1/messages", {**body, "stream": stream})
            assert response.status_code == 400
            assert "output_config.format" in response.json()["error"]["message"]


MALFORMED: list[dict[str, Any]] = [
    {"structured_outputs": {}},
    {"structured_outputs": {"json_object": False}},
    {"structured_outputs": {"regex": "a", "choice": ["b"]}},
    {"structured_outputs": {"json": "{"}},
    {"structured_outputs": {"json": "[" * 50_000}},
    {"structured_outputs": {"json": False}},
]


@pytest.mark.parametrize("fields", MALFORMED, ids=lambda value: str(value)[:60])
@pytest.mark.parametrize("tools", [[], [{"type": "function", "function": {"name": "f"}}]])
def test_malformed_wishes_are_refused_beside_tools_too(tiny: Running, fields: Any, tools: Any) -> None:
    said = [{"role": "user", "content": "x"}]
    for stream in (False, True):
        response = tiny.post(CHAT, {"messages": said, "tools": tools, "stream": stream, "max_tokens": 5, **fields})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "structured_outputs")


def test_preempted_structured_requests_replay_their_matchers(tmp_path: Any) -> None:
    """A pool too small for all of them: sequences are thrown out in the middle of their grammar and come back."""
    wanted = {"regex": "[0-9]{60}"}
    small = {"kv_memory": 1 << 20, "prefix_caching": False, "block_size": 8, "kv_dtype": "float32"}
    with running(lambda: dummy_llm(tmp_path, **small)) as server:
        answer = server.complete("x" * 100, n=60, seed=2, max_tokens=100, structured_outputs=wanted).json()
        texts = [choice["text"] for choice in answer["choices"]]
        assert all(re.fullmatch("[0-9]{60}", text) for text in texts)
        assert server.host.llm.client.stats.preemptions > 0


def test_what_no_answer_can_be_held_to_is_refused_where_it_is_promised(tiny: Running) -> None:
    """Three bounds on an array: its items are drawn, that they differ cannot be."""
    schema = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 3, "maxItems": 3, "uniqueItems": True}
    inner = {"name": "p", "schema": schema}
    assert "uniqueItems" in refused(tiny, "structured_outputs", structured_outputs={"json": schema})
    strict = {"type": "json_schema", "json_schema": {**inner, "strict": True}}
    assert "uniqueItems" in refused(tiny, "response_format", response_format=strict)
    formatted = {"type": "json_schema", "json_schema": inner}
    assert len(json.loads(text_of(tiny, response_format=formatted))) == 3
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9}
    message = tiny.post(
        "/v1/messages", {**asked, "output_config": {"format": {"type": "json_schema", "schema": schema}}}
    )
    assert (message.status_code, "uniqueItems" in message.text) == (400, True)
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": schema}}}
    for is_strict in (True, False):
        tools = [{"type": "function", "function": {**function, "strict": is_strict}}]
        answer = tiny.post(CHAT, {**asked, "tools": tools, "tool_choice": "required"})
        assert answer.status_code == (400 if is_strict else 200)
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    where = tiny.post(CHAT, {**asked, "tools": [{"type": "function", "function": {**function, "strict": True}}]})
    assert where.json()["error"]["param"] == "tools[0].function.parameters"
