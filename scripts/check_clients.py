"""Official clients against a running server: what nobody here wrote must be content with what we say.

Not part of CI. In an environment of its own: ``pip install openai anthropic``, start ``headrace serve``, then
``python scripts/check_clients.py http://127.0.0.1:8000``. Prints one line per check; exits with 1 when one failed.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import Literal

import anthropic
import openai
import pydantic

CHECKS: list[Callable[[str], str]] = []


def check(function: Callable[[str], str]) -> Callable[[str], str]:
    CHECKS.append(function)
    return function


def oai(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def claude(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)


def served(url: str) -> str:
    return oai(url).models.list().data[0].id


SAID = [{"role": "user", "content": "Say hello."}]


@check
def openai_chat(url: str) -> str:
    answer = oai(url).chat.completions.create(
        model=served(url), messages=SAID, max_completion_tokens=16, temperature=0, logprobs=True, top_logprobs=2, n=2
    )
    assert len(answer.choices) == 2
    assert answer.choices[0].logprobs.content[0].top_logprobs[1].logprob <= 0
    assert answer.usage.completion_tokens == 32 or answer.choices[0].finish_reason == "stop"
    return repr(answer.choices[0].message.content)


@check
def openai_chat_stream(url: str) -> str:
    wanted = {"model": served(url), "messages": SAID, "max_tokens": 16, "temperature": 0}
    whole = oai(url).chat.completions.create(**wanted).choices[0].message.content
    chunks = list(oai(url).chat.completions.create(**wanted, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole, (text, whole)
    assert chunks[-1].usage.total_tokens > 0
    assert chunks[-1].choices == []
    return repr(text)


@check
def openai_completion(url: str) -> str:
    answer = oai(url).completions.create(model=served(url), prompt="One, two,", echo=True, logprobs=1, max_tokens=4)
    assert answer.choices[0].text.startswith("One, two,")
    assert answer.choices[0].logprobs.token_logprobs[0] is None
    return repr(answer.choices[0].text)


@check
def openai_responses(url: str) -> str:
    answer = oai(url).responses.create(model=served(url), input="Say hello.", max_output_tokens=16, temperature=0)
    with oai(url).responses.stream(
        model=served(url), input="Say hello.", max_output_tokens=16, temperature=0
    ) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response() if answer.status == "completed" else None
    assert text == answer.output_text, (text, answer.output_text)
    assert final is None or final.output_text == text
    return repr(text)


class Place(pydantic.BaseModel):
    """What SCHEMA describes, as programs write it."""

    city: Literal["Bern", "Rome"]


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Bern", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def city_of(text: str) -> str:
    """The city of an answer that must have the form of SCHEMA."""
    value = json.loads(text)
    assert value in ({"city": "Bern"}, {"city": "Rome"}), value
    return str(value)


@check
def openai_schema(url: str) -> str:
    wanted = {"model": served(url), "messages": SAID, "max_tokens": 300}
    formatted = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": SCHEMA}}
    answer = oai(url).chat.completions.create(**wanted, response_format=formatted)
    with oai(url).chat.completions.stream(**wanted, response_format=formatted) as stream:
        city_of(stream.get_final_completion().choices[0].message.content)
    return city_of(answer.choices[0].message.content)


@check
def openai_parse(url: str) -> str:
    answer = oai(url).chat.completions.parse(model=served(url), messages=SAID, max_tokens=300, response_format=Place)
    place = answer.choices[0].message.parsed
    assert isinstance(place, Place)
    return repr(place)


@check
def openai_responses_schema(url: str) -> str:
    wanted = {"model": served(url), "input": "Say hello.", "max_output_tokens": 300}
    formatted = {"format": {"type": "json_schema", "name": "place", "strict": True, "schema": SCHEMA}}
    city_of(oai(url).responses.create(**wanted, text=formatted).output_text)
    return repr(oai(url).responses.parse(**wanted, text_format=Place).output_parsed.city)


@check
def openai_responses_logprobs(url: str) -> str:
    wanted = {"model": served(url), "input": "Say hello.", "max_output_tokens": 8, "temperature": 0}
    rows = oai(url).responses.create(**wanted, top_logprobs=2, include=["message.output_text.logprobs"])
    first = rows.output[0].content[0].logprobs[0]
    assert len(first.top_logprobs) == 2
    return repr(first.token)


@check
def anthropic_schema(url: str) -> str:
    wanted = {"model": served(url), "messages": SAID, "max_tokens": 300}
    answer = claude(url).messages.create(**wanted, output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    parsed = claude(url).messages.parse(**wanted, output_format=Place).parsed_output
    assert isinstance(parsed, Place)
    return city_of(answer.content[0].text)


@check
def openai_tools(url: str) -> str:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
    wanted = {"model": served(url), "messages": SAID, "tools": tools, "tool_choice": "required", "temperature": 0}
    answer = oai(url).chat.completions.create(**wanted, parallel_tool_calls=False, max_tokens=200).choices[0]
    assert answer.finish_reason == "tool_calls"
    with oai(url).chat.completions.stream(**wanted, parallel_tool_calls=False, max_tokens=200) as stream:
        final = stream.get_final_completion().choices[0].message.tool_calls[0].function
    assert final.arguments == answer.message.tool_calls[0].function.arguments
    return final.arguments


@check
def anthropic_tools(url: str) -> str:
    tools = [{"name": "weather", "input_schema": SCHEMA}]
    wanted = {"model": served(url), "messages": SAID, "tools": tools, "tool_choice": {"type": "any"}, "max_tokens": 200}
    with claude(url).messages.stream(**wanted) as stream:
        use = stream.get_final_message().content[0]
    assert use.input["city"] in ("Bern", "Rome")
    return str(use.input)


@check
def openai_errors(url: str) -> str:
    try:
        oai(url).chat.completions.create(model="no-such-model", messages=SAID)
        raise AssertionError("an unknown model is answered")
    except openai.NotFoundError as error:
        expect(error.code == "model_not_found", error)
    try:
        oai(url).chat.completions.create(model=served(url), messages=[])
    except openai.BadRequestError as error:
        expect(error.param == "messages", error)
        return str(error)
    raise AssertionError("no messages are answered")


def expect(condition: bool, error: Exception) -> None:
    if not condition:
        raise AssertionError(f"an unexpected refusal: {error}") from error


@check
def anthropic_message(url: str) -> str:
    wanted = {
        "model": served(url),
        "messages": SAID,
        "max_tokens": 16,
        "system": "Be brief.",
        "extra_body": {"temperature": 0},
    }
    whole = claude(url).messages.create(**wanted)
    with claude(url).messages.stream(**wanted) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    return repr(text)


@check
def anthropic_count(url: str) -> str:
    count = claude(url).messages.count_tokens(model=served(url), messages=SAID)
    assert count.input_tokens > 3
    return str(count.input_tokens)


@check
def anthropic_errors(url: str) -> str:
    try:
        claude(url).messages.create(model="no-such-model", messages=SAID, max_tokens=1)
    except anthropic.NotFoundError as error:
        return str(error)
    raise AssertionError("an unknown model is answered")


def main(url: str) -> int:
    failed = 0
    for function in CHECKS:
        try:
            print(f"ok      {function.__name__}: {function(url)[:100]}")
        except Exception:
            failed += 1
            print(f"FAILED  {function.__name__}")
            traceback.print_exc()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"))
