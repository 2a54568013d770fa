"""The default model behind the server: real weights, a process of its own, the answers of the offline engine."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from extras import needs_compiler
from test_processes import Served, serving

from headrace import LLM, SamplingParams

pytestmark = pytest.mark.model
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving("smollm2-135m-instruct", "--dtype", "float32", "--kv-memory", "256MiB") as made:
        yield made


def test_the_capital_of_france(served: Served) -> None:
    body = {"prompt": "The capital of France is", "max_tokens": 5, "temperature": 0, "return_token_ids": True}
    choice = served.http.post(TEXT, json=body).json()["choices"][0]
    assert choice["token_ids"] == [7042, 30, 198, 198, 504]
    assert choice["text"].startswith(" Paris.")


def test_served_logprobs_are_those_of_the_offline_engine_to_the_bit(served: Served, llm: LLM) -> None:
    prompt = "Water boils at"
    params = SamplingParams(temperature=1, seed=4, max_tokens=12, logprobs=0)
    offline = llm.generate(prompt, params)[0].outputs[0]
    body = {"prompt": prompt, "temperature": 1, "seed": 4, "max_tokens": 12, "logprobs": 0}
    choice = served.http.post(TEXT, json=body).json()["choices"][0]
    assert choice["text"] == offline.text
    assert offline.logprobs is not None
    wanted = [next(iter(entry.values())).logprob for entry in offline.logprobs]
    assert choice["logprobs"]["token_logprobs"] == wanted


def test_chat_equals_the_offline_chat(served: Served, llm: LLM) -> None:
    messages = [{"role": "user", "content": "Say hello."}]
    [offline] = llm.chat(messages, SamplingParams(temperature=0, max_tokens=20))
    body = {"messages": messages, "temperature": 0, "max_tokens": 20}
    assert served.http.post(CHAT, json=body).json()["choices"][0]["message"]["content"] == offline.outputs[0].text


@needs_compiler
def test_json_by_schema(served: Served) -> None:
    properties = {"city": {"type": "string", "maxLength": 20}, "capital": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": ["city", "capital"]}
    formatted = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}}
    messages = [{"role": "user", "content": "Describe Paris as JSON with the keys city and capital."}]
    body = {"messages": messages, "response_format": formatted, "temperature": 0, "max_tokens": 200}
    choice = served.http.post(CHAT, json=body).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert set(json.loads(choice["message"]["content"])) == {"city", "capital"}
