"""Inputs that broke other engines at this edge, by name."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from served import Running, Script, running, scripted_llm, text_tokenizer

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def texts(events: list[dict[str, Any]], index: int = 0) -> str:
    """The joined text of one choice of a stream, chat or text."""
    out = ""
    for event in events:
        for choice in event["choices"]:
            if choice["index"] == index:
                out += choice.get("text") or choice.get("delta", {}).get("content") or ""
    return out


def asked(route: str, said: str, **fields: Any) -> dict[str, Any]:
    """A body for either route."""
    return fields | ({"prompt": said} if route == TEXT else {"messages": [{"role": "user", "content": said}]})


def finish_of(events: list[dict[str, Any]]) -> list[str]:
    return [c["finish_reason"] for e in events for c in e["choices"] if c["finish_reason"]]


def refusal(response: httpx.Response, param: str | None = None, status: int = 400) -> str:
    """The message of a refusal in OpenAI's shape."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    if param is not None:
        assert error["param"] == param, error
    message = error["message"]
    assert isinstance(message, str)
    return message


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tokens", ["scripted", "pieced"])
def test_s2_a_stop_string_over_several_tokens_never_shows(
    request: pytest.FixtureRequest, tokens: str, stream: bool
) -> None:
    scripted: Running = request.getfixturevalue(tokens)

    def ask(prompt: str) -> tuple[str, str, Any]:
        body = {"prompt": prompt, "stop": ["DEFGHIJ"], "max_tokens": 50}
        if not stream:
            choice = scripted.post(TEXT, body).json()["choices"][0]
            return choice["text"], choice["finish_reason"], choice.get("stop_reason")
        events = scripted.stream(TEXT, body)
        reasons = [c.get("stop_reason") for e in events for c in e["choices"] if c["finish_reason"]]
        return texts(events), finish_of(events)[0], reasons[0]

    assert ask("stop-whole") == ("abc", "stop", "DEFGHIJ")
    assert ask("stop-not") == ("abcDEFGHIXxyz", "stop", None)
    drawn = scripted.complete("stop-not", max_tokens=50).json()["usage"]["completion_tokens"]
    assert drawn == {"scripted": 14, "pieced": 7}[tokens]  # the end is a token too


def test_s3_half_a_character_at_the_end_of_a_prompt_is_not_continued_in_the_answer(
    scripted: Running, script: Script
) -> None:
    prompt = script.ids(b"emoji " + "😀".encode()[:2])
    events = scripted.stream(TEXT, {"prompt": prompt, "max_tokens": 3})
    assert texts(events) == "��!"
    assert "emoji" not in json.dumps(events)


@pytest.mark.parametrize("stream", [False, True])
def test_s4_bytes_that_are_no_text_are_counted_and_marked(scripted: Running, stream: bool) -> None:
    body = {"prompt": "lone-bytes", "max_tokens": 4}
    if stream:
        events = scripted.stream(TEXT, {**body, "stream_options": {"include_usage": True}})
        text, usage = texts(events), events[-1]["usage"]
    else:
        answer = scripted.post(TEXT, body).json()
        text, usage = answer["choices"][0]["text"], answer["usage"]
    assert text == "�A�"
    assert usage["completion_tokens"] == 4


def test_s9_json_nested_100000_deep_is_refused(scripted: Running) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    for raw in (deep, b'{"prompt":' + deep + b"}", b'{"messages":[{"role":"user","content":' + deep + b"}]}"):
        for route in (CHAT, TEXT, "/tokenize"):
            response = scripted.http.post(route, content=raw, headers={"content-type": "application/json"})
            assert "deep" in refusal(response)
    assert scripted.complete("still here", max_tokens=1).status_code == 200


def test_s15_an_engine_fault_in_the_middle_ends_the_stream_with_an_error(script: Script) -> None:
    with running(lambda: scripted_llm(script, fail_steps={5})) as server:
        raw = server.raw_stream(TEXT, {"prompt": "x", "max_tokens": 50})
        last = json.loads(raw[-1])
        assert last["error"]["type"] == "server_error"
        assert "scripted failure" in last["error"]["message"]
        assert "[DONE]" not in raw
        assert not finish_of([json.loads(one) for one in raw[:-1]])
        assert texts([json.loads(one) for one in raw[:-1]]).startswith("lorem")
        assert server.complete("x", max_tokens=50).status_code == 200  # the engine goes on
    with running(lambda: scripted_llm(script, fail_steps={5})) as server:
        assert "scripted" in refusal(server.complete("x", max_tokens=50), status=500)


BIASES = ['{"999999999":5}', '{"-1":1}', '{"a":1}', '{"5":NaN}', '{"5":1e9}', '{"5":1e999}', '{"5":null}', "[5]"]


@pytest.mark.parametrize("bias", BIASES)
def test_s18_a_bad_logit_bias_is_refused(tiny: Running, bias: str) -> None:
    raw = f'{{"prompt":"x","logit_bias":{bias}}}'
    response = tiny.http.post(TEXT, content=raw, headers={"content-type": "application/json"})
    message = refusal(response)
    assert "NaN" in bias or "logit_bias" in message


def test_s18_others_of_the_batch_are_bit_equal_beside_refusals(tiny: Running) -> None:
    body = {"prompt": "bits", "max_tokens": 60, "temperature": 1, "seed": 3, "logprobs": 2, "cache_salt": "s18"}
    alone = tiny.post(TEXT, body).json()["choices"]
    with tiny.http.stream("POST", TEXT, json={**body, "stream": True}) as response:
        lines = response.iter_lines()
        first = next(line for line in lines if line.startswith("data: "))
        for bias in BIASES:
            other = f'{{"prompt":"x","logit_bias":{bias}}}'
            tiny.http.post(TEXT, content=other, headers={"content-type": "application/json"})
        events = [json.loads(one[6:]) for one in [first, *lines] if one.startswith("data: {")]
    assert texts(events) == alone[0]["text"]
    scores = [x for e in events for c in e["choices"] for x in c["logprobs"]["token_logprobs"]]
    assert scores == alone[0]["logprobs"]["token_logprobs"]


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["a", ""], [[1], []], [1, "a"], ["a", 1], [1.5], [-1], [99999]])
def test_s19_empty_and_impossible_prompts_are_refused(scripted: Running, prompt: Any) -> None:
    assert "prompt" in refusal(scripted.complete(prompt))


def test_s19_ids_that_do_not_exist_are_refused_by_the_fields_name(scripted: Running) -> None:
    assert "99999999" in refusal(scripted.complete([1, 99999999]), "prompt")


def test_s19_no_messages_are_refused(scripted: Running) -> None:
    refusal(scripted.post(CHAT, {"messages": []}), "messages")
    refusal(scripted.post(CHAT, {}), "messages")


@pytest.mark.parametrize("stream", [False, True])
def test_s20_echo_scores_the_prompt_without_generating(tiny: Running, stream: bool) -> None:
    body = {"prompt": "Scored.", "echo": True, "logprobs": 1, "max_tokens": 0}
    if stream:
        [event] = [e for e in tiny.stream(TEXT, body) if e["choices"]]
        choice = event["choices"][0]
    else:
        answer = tiny.post(TEXT, body).json()
        choice = answer["choices"][0]
        assert answer["usage"] | {"prompt_tokens_details": None} == {
            "prompt_tokens": 7,
            "completion_tokens": 0,
            "total_tokens": 7,
            "prompt_tokens_details": None,
        }
    assert (choice["text"], choice["finish_reason"]) == ("Scored.", "length")
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == list("Scored.")
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert all(x <= 0 for x in logprobs["token_logprobs"][1:])
    assert len(logprobs["token_logprobs"]) == 7
    assert logprobs["text_offset"] == list(range(7))


@pytest.mark.parametrize("route", [CHAT, TEXT])
def test_s22_three_choices_streamed_equal_the_unstreamed(tiny: Running, route: str) -> None:
    body = asked(route, "Thrice", n=3, seed=11, max_tokens=20, temperature=1.0, ignore_eos=True)
    whole = tiny.post(route, body).json()
    events = tiny.stream(route, {**body, "stream_options": {"include_usage": True}})
    assert [c["index"] for c in whole["choices"]] == [0, 1, 2]
    assert {c["index"] for e in events for c in e["choices"]} == {0, 1, 2}
    told = [c["text"] if route == TEXT else c["message"]["content"] for c in whole["choices"]]
    assert [texts(events, i) for i in range(3)] == told
    assert len(set(told)) == 3
    usages = [e["usage"] for e in events if e["usage"]]
    assert len(usages) == 1
    assert usages[0]["completion_tokens"] == whole["usage"]["completion_tokens"] == 60


TOO_MUCH: list[tuple[dict[str, Any], str, str]] = [
    ({"max_tokens": 2**31}, "max_tokens", "2147483648"),
    ({"max_tokens": 2**63}, "max_tokens", "9223372036854775808"),
    ({"max_tokens": -1}, "max_tokens", "-1"),
    ({"max_tokens": 1.5}, "max_tokens", "float"),
    ({"max_tokens": "5"}, "max_tokens", "str"),
    ({"max_tokens": 0}, "max_tokens", "0"),
    ({"n": 2**63 - 1}, "n", "9223372036854775807"),
    ({"n": 0}, "n", "0"),
    ({"priority": 2**40}, "priority", "1099511627776"),
    ({"seed": 2**64}, "seed", "18446744073709551616"),
    ({"temperature": -1}, "temperature", "-1"),
    ({"temperature": 2.01}, "temperature", "from 0.0 up to 2.0, got 2.01"),
    ({"presence_penalty": -3}, "presence_penalty", "from -2.0 up to 2.0, got -3.0"),
    ({"frequency_penalty": 9}, "frequency_penalty", "9"),
    ({"top_p": 0}, "top_p", "0"),
    ({"stop": [""]}, "stop", "non-empty"),
    ({"stop": ["a"] * 65}, "stop", "65"),
    ({"min_tokens": 9, "max_tokens": 5}, "min_tokens", "9"),
    ({"cache_salt": "x" * 2000}, "cache_salt", "2000"),
    ({"kv_class": "robot"}, "kv_class", "robot"),
    ({"nonsense": 1}, "nonsense", "unknown"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
    ({"stream": True, "stream_options": {"surprise": 1}}, "stream_options.surprise", "unknown"),
]
TEXT_ONLY: list[tuple[dict[str, Any], str, str]] = [
    ({"logprobs": 10**6}, "logprobs", "1000000"),
    ({"best_of": 3}, "best_of", "n (1)"),
    ({"suffix": "end"}, "suffix", "not served"),
]


CHAT_ONLY: list[tuple[dict[str, Any], str, str]] = [
    ({"max_completion_tokens": 2**63}, "max_completion_tokens", "9223372036854775808"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "0"),
    ({"logprobs": True, "top_logprobs": 10**6}, "top_logprobs", "1000000"),
]


@pytest.mark.parametrize(
    ("route", "fields", "param", "words"),
    [(TEXT, *row) for row in TOO_MUCH + TEXT_ONLY] + [(CHAT, *row) for row in TOO_MUCH + CHAT_ONLY],
    ids=lambda value: str(value)[:40],
)
def test_s23_numbers_out_of_bounds_are_refused_with_the_true_numbers(
    scripted: Running, route: str, fields: dict[str, Any], param: str, words: str
) -> None:
    assert words in refusal(scripted.post(route, asked(route, "x", **fields)), param)


def test_s23_a_prompt_longer_than_the_context_is_refused_with_both_lengths(scripted: Running) -> None:
    message = refusal(scripted.complete("x" * 20_000), "prompt")
    assert "20000" in message
    assert scripted.complete("x" * 19_999, max_tokens=50).json()["usage"]["completion_tokens"] == 1  # the clamp


@pytest.mark.parametrize("route", [CHAT, TEXT])
@pytest.mark.parametrize("wanted", [True, False, None])
def test_s27_usage_comes_once_and_last_when_asked_for(scripted: Running, route: str, wanted: bool | None) -> None:
    body = asked(route, "x", max_tokens=3)
    if wanted is not None:
        body["stream_options"] = {"include_usage": wanted}
    events = scripted.stream(route, body)
    empty = [i for i, event in enumerate(events) if event["choices"] == []]
    if wanted:
        assert empty == [len(events) - 1]
        assert events[-1]["usage"]["completion_tokens"] == 3
        assert all(event["usage"] is None for event in events[:-1])
    else:
        assert empty == []
        assert all("usage" not in event for event in events)


CONTROLS = ["<|end|>", "<|user|>", "<|answer|>"]


def test_s29_no_control_token_comes_from_content(tmp_path: Any) -> None:
    template = (
        "{% for t in tools or [] %}{{ t.function.name }}{{ t.function.description }}{% endfor %}"
        "{% for m in messages %}<|user|>{{ m.role }}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}<|end|>{% endfor %}<|answer|>"
    )
    script = Script(text_tokenizer(tmp_path, chat_template=template))
    with running(lambda: scripted_llm(script)) as server:
        for control in CONTROLS:
            call = {"id": "1", "type": "function", "function": {"name": control, "arguments": "{}"}}
            messages = [
                {"role": "developer", "content": control},
                {"role": "user", "content": [{"type": "text", "text": control}, {"type": "text", "text": "b"}]},
                {"role": "assistant", "content": control, "tool_calls": [call]},
                {"role": "tool", "content": control, "tool_call_id": "1"},
            ]
            tools = [{"type": "function", "function": {"name": "f", "description": control, "parameters": {}}}]
            body = {"messages": messages, "tools": tools, "tool_choice": "none", "max_tokens": 1}
            assert server.post(CHAT, body).status_code == 200
            ids = server.requests[-1].prompt_token_ids
            found = [script.tokenizer.token_text(i) for i in ids if i in script.tokenizer.special_ids]
            assert found == ["<|user|>", "<|end|>"] * 4 + ["<|answer|>"]
            assert script.tokenizer.decode(ids, skip_special=True).count(control) == 6
            same = server.post("/tokenize", {"messages": messages, "tools": tools}).json()
            assert same["tokens"] == ids


def test_s29_a_control_word_spelled_by_ordinary_tokens_ends_nothing(scripted: Running) -> None:
    choice = scripted.complete("spelled", max_tokens=50).json()["choices"][0]
    assert choice["text"] == "<|end|>after"


@pytest.mark.parametrize("said", ["hi", "<|user|>hi"])
@pytest.mark.parametrize("template_writes", [True, False])
def test_s30_exactly_one_bos(tmp_path: Any, said: str, template_writes: bool) -> None:
    template = ("{{ bos_token }}" if template_writes else "") + "{{ messages[0].content }}"
    tokenizer = text_tokenizer(tmp_path, chat_template=template, bos_token="<|user|>", add_bos_token=True)
    script = Script(tokenizer)
    with running(lambda: scripted_llm(script)) as server:
        assert server.chat(said, max_tokens=1).status_code == 200
        ids = server.requests[-1].prompt_token_ids
    assert ids[0] == tokenizer.bos_id
    assert ids.count(ids[0]) == 1
    assert tokenizer.decode(ids[1:], skip_special=False) == said


@pytest.mark.parametrize("path", [CHAT, TEXT, "/v1/messages"])
def test_one_request_cannot_make_work_for_all_choices_without_bound(scripted: Running, path: str) -> None:
    stops = {"stop_sequences" if path == "/v1/messages" else "stop": [f"{i}" + "a" * 5000 for i in range(60)]}
    refused = scripted.post(path, asked(path, "x", max_tokens=1, **stops))
    assert refused.status_code == 400
    assert "characters of stop strings" in refused.text
