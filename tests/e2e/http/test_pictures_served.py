"""Pictures as parts of messages, in three protocols: the same answers as a prompt with pictures gets without a server,
in this process and in another; and what is refused, by name, before anything is queued."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image
from served import Running, running

from headrace import LLM, AsyncLLM, SamplingParams
from headrace.api.picture_files import MOST_SIDE
from headrace.api.pictures import MOST_PICTURES
from headrace.api.text.chat import HOLDER

SETTINGS: dict[str, Any] = {"kv_memory": 32 << 20, "num_threads": 1, "max_model_len": 512}
MODEL, HOLDER_TEXT = "v41-mini", "<｜deepseek_image｜>"
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
WORDS = "What did Alice see?"


def png(seed: int, height: int = 70, width: int = 112) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def openai_part(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(data), "detail": "auto"}}


def user(*parts: dict[str, Any] | str) -> list[dict[str, Any]]:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return [{"role": "user", "content": content}]


def chat(server: Running, *parts: dict[str, Any] | str, **fields: Any) -> Any:
    return server.post(CHAT, {"messages": user(*parts), "max_tokens": 8, "temperature": 0} | fields)


@pytest.fixture(scope="module")
def seen() -> dict[str, list[int]]:
    """Greedy ids of prompts with one picture, another one, and both."""
    first, second = HOLDER_TEXT + "\n" + WORDS, HOLDER_TEXT + "\n" + HOLDER_TEXT + "\n" + WORDS
    prompts = [(first, [png(1)]), (first, [png(2)]), (second, [png(1), png(2)])]
    params = SamplingParams(temperature=0, max_tokens=8)
    with LLM(MODEL, **SETTINGS) as llm:
        found = llm.generate([{"prompt": text, "images": images} for text, images in prompts], params)
    return dict(zip(("one", "other", "both"), (list(o.outputs[0].token_ids) for o in found)))


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(lambda: AsyncLLM(MODEL, **SETTINGS), names=(MODEL,)) as made:
        yield made


def ids(response: Any) -> list[int]:
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["token_ids"]


def test_chat_sees_what_a_prompt_with_pictures_sees(server: Running, seen: dict[str, list[int]]) -> None:
    one, other = openai_part(png(1)), openai_part(png(2))
    assert ids(chat(server, one, WORDS, return_token_ids=True)) == seen["one"]
    assert ids(chat(server, other, WORDS, return_token_ids=True)) == seen["other"]
    assert ids(chat(server, one, other, WORDS, return_token_ids=True)) == seen["both"]


def test_the_other_protocols_say_the_same(server: Running) -> None:
    said = chat(server, openai_part(png(1)), WORDS).json()["choices"][0]["message"]["content"]
    parts = [{"type": "input_image", "image_url": url(png(1))}, {"type": "input_text", "text": WORDS}]
    items = {"input": [{"role": "user", "content": parts}], "max_output_tokens": 8, "temperature": 0}
    answer = server.post(RESPONSES, items).json()
    assert answer["output"][0]["content"][0]["text"] == said
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(png(1)).decode()}
    turn = {"messages": user({"type": "image", "source": source}, WORDS)}
    answer = server.post(MESSAGES, turn | {"max_tokens": 8, "temperature": 0}).json()
    assert answer["content"][0]["text"] == said
    counted = server.post(f"{MESSAGES}/count_tokens", turn).json()
    assert counted["input_tokens"] == answer["usage"]["input_tokens"] > 10


def test_text_that_spells_the_control_token_is_no_picture(server: Running) -> None:
    plain = chat(server, openai_part(png(1)), f"{HOLDER_TEXT} {WORDS}")
    assert plain.status_code == 200
    assert chat(server, f"{HOLDER_TEXT} {WORDS}").status_code == 200


@pytest.mark.parametrize(
    ("part", "param", "words"),
    [
        ({"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}, "image_url", "nothing is fetched"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "image_url", "nothing is fetched"),
        ({"type": "image_url", "image_url": {"url": "data:text/plain;base64,AAAA"}}, "image_url", "data: URL"),
        ({"type": "image_url", "image_url": {"url": "data:image/png,AAAA"}}, "image_url", "data: URL"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,A*"}}, "image_url", "no base64"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, "image_url", "no picture"),
        ({"type": "image_url"}, "image_url", "data: URL"),
        ({"type": "input_image", "file_id": "file-1"}, "file_id", "nothing is stored"),
        ({"type": "image", "source": {"type": "url", "url": "http://x"}}, "source", "nothing is fetched"),
        (openai_part(png(1, 1, MOST_SIDE + 1)), "image_url", "pixels are read"),
        (openai_part(png(1)[:80]), "image_url", "cannot be decoded"),
        ({"type": "video_url"}, "", "parts are text, or pictures"),
    ],
)
def test_what_is_no_picture_is_refused_by_name(server: Running, part: dict[str, Any], param: str, words: str) -> None:
    response = chat(server, part, WORDS)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == f"messages[0].content[0]{'.' if param else ''}{param}"
    assert words in error["message"]


def test_other_roles_too_many_and_the_holder_are_refused(server: Running) -> None:
    one = openai_part(png(1, 14, 14))
    told = server.post(CHAT, {"messages": [{"role": "system", "content": [one]}, *user(WORDS)]})
    assert told.json()["error"]["param"] == "messages[0].content[0]"
    many = chat(server, *[one] * (MOST_PICTURES + 1))
    assert many.json()["error"]["param"] == f"messages[0].content[{MOST_PICTURES}]"
    held = chat(server, one, f"{HOLDER} {WORDS}")
    assert (held.status_code, held.json()["error"]["param"]) == (400, "messages")


def test_a_place_holder_without_its_picture_is_refused(server: Running) -> None:
    ids = server.post("/tokenize", {"prompt": f"{HOLDER_TEXT} {WORDS}"}).json()["tokens"]
    for prompt in (f"{HOLDER_TEXT} {WORDS}", ids):
        answer = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 2})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")
        assert f"{HOLDER_TEXT} (id 2046)" in answer.json()["error"]["message"]


def test_an_engine_in_a_process_of_its_own_sees_them_too(seen: dict[str, list[int]]) -> None:
    async def answer() -> list[int]:
        async with AsyncLLM(MODEL, own_process=True, **SETTINGS) as llm:
            prompt = {"prompt": HOLDER_TEXT + "\n" + WORDS, "images": [png(1)]}
            async for output in llm.generate(prompt, SamplingParams(temperature=0, max_tokens=8)):
                last = output
            return list(last.outputs[0].token_ids)

    assert asyncio.run(answer()) == seen["one"]
