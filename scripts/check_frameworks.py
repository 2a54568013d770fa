"""langchain-openai and litellm against a running server: chat, stream, tools, JSON schema.

Not part of CI. In an environment of its own: ``pip install langchain-openai litellm``, start ``headrace serve`` (with
the ``grammar`` extra), then ``python scripts/check_frameworks.py http://127.0.0.1:8000``. Exits with 1 when a check
failed.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

import httpx
import litellm
from langchain_openai import ChatOpenAI

SCHEMA = {
    "title": "weather",
    "description": "Looks up the weather of a city.",
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
SAID = [{"role": "user", "content": "Say hello."}]
CITIES = ("Bern", "Rome")


def chain(url: str, model: str) -> ChatOpenAI:
    return ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=model, temperature=0, max_tokens=120, max_retries=0)


def lite(url: str, model: str, **more: Any) -> Any:
    known = {"api_base": f"{url}/v1", "api_key": "none", "temperature": 0, "max_tokens": 120, "messages": SAID}
    return litellm.completion(model=f"openai/{model}", **known, **more)


def langchain_chat_and_stream(url: str, model: str) -> str:
    whole = chain(url, model).invoke("Say hello.").content
    assert "".join(piece.content for piece in chain(url, model).stream("Say hello.")) == whole
    return repr(whole)


def langchain_tools(url: str, model: str) -> str:
    answer = chain(url, model).bind_tools([TOOL], tool_choice="weather").invoke("Say hello.")
    assert answer.tool_calls[0]["args"]["city"] in CITIES
    return str(answer.tool_calls[0]["args"])


def langchain_schema(url: str, model: str) -> str:
    value = chain(url, model).with_structured_output(SCHEMA, method="json_schema").invoke("Say hello.")
    assert value["city"] in CITIES
    return str(value)


def litellm_chat_and_stream(url: str, model: str) -> str:
    whole = lite(url, model).choices[0].message.content
    pieces = [piece.choices[0].delta.content or "" for piece in lite(url, model, stream=True)]
    assert "".join(pieces) == whole
    return repr(whole)


def litellm_tools(url: str, model: str) -> str:
    call = lite(url, model, tools=[TOOL], tool_choice="required").choices[0].message.tool_calls[0]
    assert json.loads(call.function.arguments)["city"] in CITIES
    return call.function.arguments


def litellm_schema(url: str, model: str) -> str:
    wanted = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}}
    text = lite(url, model, response_format=wanted).choices[0].message.content
    assert json.loads(text)["city"] in CITIES
    return text


CHECKS: tuple[Callable[[str, str], str], ...] = (
    langchain_chat_and_stream,
    langchain_tools,
    langchain_schema,
    litellm_chat_and_stream,
    litellm_tools,
    litellm_schema,
)


def main(url: str) -> int:
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    failed = 0
    for check in CHECKS:
        try:
            print(f"ok      {check.__name__}: {check(url, model)[:100]}")
        except Exception:
            failed += 1
            print(f"FAILED  {check.__name__}")
            traceback.print_exc()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"))
