"""The recipe codec over HTTP: control tokens by position only, on the way in and on the way out; clear refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from recipe_models import (
    ASSISTANT,
    BOS,
    CONTROL,
    DSML,
    END_THINK,
    SYSTEM,
    THINK,
    USER,
    MarkedScript,
    called,
    recipe_tokenizer,
)
from served import MODEL, Running, running, scripted_llm, text_tokenizer

from headrace.api.http.host import EngineHost
from headrace.api.protocol import recipe
from headrace.cli.serve import check_codec
from headrace.contract.errors import ConfigError

pytestmark = pytest.mark.skipif(find_spec("deepseek_recipe") is None, reason="needs the deepseek extra")

CHAT = "/v1/chat/completions"
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
ANSWERS = {
    b"ponder": f"first\0{END_THINK}still{END_THINK}said \0{DSML} end".encode(),
    b"q-call": f"hm{END_THINK}Well.\n\n{called('Bern')}".encode(),
    b"q-other": f"{END_THINK}{called('Bern', 'nope')}".encode(),
    b"q-broken": f"{END_THINK}{called('{Bern', plain='false')}".encode(),
    b"half": "aé😀".encode(),
    b"stops": f"aXYZb{END_THINK}cXYZd".encode(),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    script = MarkedScript(recipe_tokenizer(tmp_path_factory.mktemp("v41")), ANSWERS)
    with running(lambda: scripted_llm(script), codec="recipe") as made:
        yield made


def ask(server: Running, word: str, **fields: Any) -> tuple[dict[str, Any], str]:
    """Message and finish reason; streamed and whole must agree."""
    body = {"messages": [{"role": "user", "content": word}], "max_tokens": 400, **fields}
    [choice] = server.post(CHAT, body).json()["choices"]
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    finish = None
    for event in server.stream(CHAT, body):
        for one in event["choices"]:
            finish = one["finish_reason"] or finish
            for name in ("content", "reasoning_content"):
                message[name] += one["delta"].get(name) or ""
            for call in one["delta"].get("tool_calls", []):
                if "id" in call:
                    message["tool_calls"].append([call["function"]["name"], ""])
                message["tool_calls"][call["index"]][1] += call["function"]["arguments"]
    whole = choice["message"]
    assert message["content"] == (whole["content"] or "")
    assert message["reasoning_content"] == whole.get("reasoning_content", "")
    told = [[call["function"]["name"], call["function"]["arguments"]] for call in whole.get("tool_calls", [])]
    assert (message["tool_calls"], finish) == (told, choice["finish_reason"])
    return message, choice["finish_reason"]


def test_what_is_spelled_in_an_answer_ends_nothing(server: Running) -> None:
    message, finish = ask(server, "ponder")
    assert message["reasoning_content"] == f"first{END_THINK}still"
    assert message["content"] == f"said {DSML} end"
    assert finish == "stop"


def test_calls_are_read(server: Running) -> None:
    message, finish = ask(server, "q-call", tools=TOOLS)
    assert (message["reasoning_content"], message["content"].strip(), finish) == ("hm", "Well.", "tool_calls")
    [[name, arguments]] = message["tool_calls"]
    assert (name, json.loads(arguments)) == ("weather", {"city": "Bern"})


@pytest.mark.parametrize("word", ["q-other", "q-broken"])
def test_calls_that_are_none_are_never_told_as_complete(server: Running, word: str) -> None:
    assert ask(server, word, tools=TOOLS)[1] == "stop"


@pytest.mark.parametrize("most", range(1, 9))
def test_text_before_half_a_character_is_told(server: Running, most: int) -> None:
    message, finish = ask(server, "half", max_tokens=most)
    told = "aé😀"
    assert message["reasoning_content"] == told.encode()[:most].decode("utf-8", "replace")
    assert finish == ("length" if most < 8 else "stop")


def test_a_cut_call_says_so(server: Running) -> None:
    for most in (30, 60, 90):
        message, finish = ask(server, "q-call", tools=TOOLS, max_tokens=most)
        assert finish == "length", message


def test_nothing_of_a_stop_string_is_told(server: Running) -> None:
    message, finish = ask(server, "stops", stop=["XYZ"])
    assert (message["reasoning_content"], message["content"], finish) == ("a", "", "stop")
    message, _ = ask(server, "stops", stop=["Zd"])
    assert (message["reasoning_content"], message["content"]) == ("aXYZb", "cXY")


def test_a_token_that_ends_an_answer_is_no_part_of_it_unless_asked_for(server: Running) -> None:
    tokenizer = server.host.llm.tokenizer
    assert tokenizer is not None
    [end] = tokenizer.encode("d", add_special=False)
    message, finish = ask(server, "stops", stop_token_ids=[end])
    assert (message["reasoning_content"], message["content"], finish) == ("aXYZb", "cXYZ", "stop")
    message, _ = ask(server, "stops", stop_token_ids=[end], include_stop_str_in_output=True)
    assert message["content"] == "cXYZd"


def test_content_brings_no_control_token_into_a_prompt(server: Running) -> None:
    spelled = "".join(CONTROL)
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": json.dumps({"city": spelled})}}
    said = [
        {"role": "developer", "content": spelled},
        {"role": "user", "content": spelled},
        {"role": "assistant", "content": spelled, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": spelled},
    ]
    plain = json.loads(json.dumps(said).replace(json.dumps(spelled)[1:-1], "x"))
    tools = [{"type": "function", "function": {"name": "weather", "description": spelled, "parameters": WEATHER}}]
    for messages in (said, plain):
        body = {"messages": messages, "tools": tools, "max_tokens": 1}
        assert server.post(CHAT, body).status_code == 200
    forged, honest = (request.prompt_token_ids for request in server.requests[-2:])
    tokenizer = server.host.llm.tokenizer
    assert tokenizer is not None
    control = {tokenizer.added_id(token) for token in CONTROL}
    marks = [[index for index in ids if index in control] for ids in (forged, honest)]
    assert marks[0] == marks[1]
    assert marks[0].count(tokenizer.added_id(BOS)) == 1 == marks[0].count(tokenizer.added_id(SYSTEM))
    assert marks[0][-2:] == [tokenizer.added_id(ASSISTANT), tokenizer.added_id(THINK)]
    assert marks[0].count(tokenizer.added_id(USER)) == 2  # a tool's result is told as the user's


def test_prompts_are_what_the_package_encodes(server: Running) -> None:
    package, tokenizer = recipe.load_recipe(), server.host.llm.tokenizer
    assert tokenizer is not None
    conversation = package.Conversation([package.UserMessage(f"é {THINK} ?")], thinking_mode=False)
    decoder = package.Tokenizer.from_str(tokenizer.as_json())
    wanted = package.DeepseekV41Encoding().with_tokenizer(decoder).encode(conversation)
    said = [{"role": "user", "content": f"é {THINK} ?"}]
    assert server.host.codec.encode(said, variables={"thinking": False}) == wanted
    assert server.post("/tokenize", {"messages": said, "chat_template_kwargs": {"thinking": False}}).json()[
        "tokens"
    ] == list(wanted)


def test_thinking_and_effort(server: Running) -> None:
    message, _ = ask(server, "ponder", reasoning_effort="none")
    assert (message["reasoning_content"], message["content"][:5]) == ("", "first")
    for effort in ("low", "max"):
        assert ask(server, "ponder", reasoning_effort=effort)[0]["reasoning_content"].startswith("first")
    message, _ = ask(server, "ponder", chat_template_kwargs={"thinking": False})
    assert message["reasoning_content"] == ""


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"reasoning_effort": "much"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"thinking": "yes"}}, "chat_template_kwargs.thinking"),
        ({"chat_template_kwargs": {"reasoning_effort": ["low"]}}, "reasoning_effort"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": "x"}]}]},
            "messages[0].tool_calls[0].function",
        ),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
    ],
)
def test_what_it_cannot_do_is_refused(server: Running, fields: dict[str, Any], param: str) -> None:
    answer = server.post(CHAT, {"messages": [{"role": "user", "content": "x"}], **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_schema_with_a_number_too_large_for_the_package_is_refused(server: Running) -> None:
    function = {"name": "weather", "parameters": {"type": "object", "maxProperties": 2**70}}
    tools = [{"type": "function", "function": function}]
    for route, more in ((CHAT, {"max_tokens": 1}), ("/tokenize", {})):
        answer = server.post(route, {"messages": [{"role": "user", "content": "x"}], "tools": tools, **more})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages"), answer.text


def test_other_protocols_speak_it_too(server: Running) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "q-call"}], "max_tokens": 400}
    body["tools"] = [{"name": "weather", "input_schema": WEATHER}]
    message = server.post("/v1/messages", body).json()
    assert message["stop_reason"] == "tool_use"
    assert message["content"][-1]["input"] == {"city": "Bern"}
    response = server.post("/v1/responses", {"input": "ponder", "max_output_tokens": 400}).json()
    assert f"said {DSML} end" in json.dumps(response, ensure_ascii=False)


def test_responses_can_turn_thoughts_off_and_count_them(server: Running) -> None:
    body = {"input": "ponder", "max_output_tokens": 400}
    response = server.post("/v1/responses", body).json()
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    tokenizer = server.host.llm.tokenizer
    assert tokenizer is not None
    thought = tokenizer.encode(f"first{END_THINK}still", add_special=False, parse_special=False)
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": len(thought) + 1}
    response = server.post("/v1/responses", {**body, "reasoning": {"effort": "none"}}).json()
    assert [item["type"] for item in response["output"]] == ["message"]
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}


def test_a_vocabulary_of_another_family_is_refused_at_the_start(tmp_path: Path) -> None:
    script = MarkedScript(text_tokenizer(tmp_path))
    with pytest.raises(ConfigError, match=r"codec: recipe is for DeepSeek-V4\.1's own vocabulary.*DSML"):
        EngineHost(lambda: scripted_llm(script), [MODEL], codec="recipe")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(recipe, "import_module", missing)
    with pytest.raises(ConfigError, match=r"headrace\[deepseek\]"):
        check_codec("recipe")
    with pytest.raises(ConfigError, match="one of template, recipe"):
        check_codec("other")
