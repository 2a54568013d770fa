"""``/v1/embeddings``: the encoder in its own process beside the model."""

from __future__ import annotations

import base64
import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_encoder
from served import Running, Script, running, scripted_llm, until

from headrace.api.embedder import Embedder
from headrace.api.embedding_process import EmbeddingProcess
from headrace.api.http.app import AppSettings
from headrace.api.http.embeddings import Embeddings

ROUTE = "/v1/embeddings"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder.write_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def served(script: Script, folder: Path) -> Iterator[tuple[Running, EmbeddingProcess]]:
    process = EmbeddingProcess(str(folder))
    with running(lambda: scripted_llm(script), settings=AppSettings(embeddings=Embeddings(process, "enc"))) as server:
        yield server, process


def test_vectors_in_both_codings(served: tuple[Running, EmbeddingProcess], folder: Path) -> None:
    server, process = served
    texts = ["cab", "sea b c"]
    expected = Embedder(str(folder), num_threads=1).embed(texts)
    told = server.post(ROUTE, {"input": texts, "model": "enc"}).json()
    assert [one["embedding"] for one in told["data"]] == expected
    assert [one["index"] for one in told["data"]] == [0, 1]
    ids = [process.inputs.ids(text) for text in texts]
    assert told["usage"] == {"prompt_tokens": sum(map(len, ids)), "total_tokens": sum(map(len, ids))}
    coded = server.post(ROUTE, {"input": ids, "encoding_format": "base64", "dimensions": 48}).json()["data"]
    for one, vector in zip(coded, expected):
        assert list(struct.unpack("<48f", base64.b64decode(one["embedding"]))) == vector
    assert [one["id"] for one in server.http.get("/v1/models").json()["data"]] == ["tiny", "enc"]
    assert server.http.get("/v1/models/enc").json()["id"] == "enc"
    for alone in (ids[0], texts[0]):
        assert server.post(ROUTE, {"input": alone}).json()["data"][0]["embedding"] == expected[0]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"input": ""}, 400, "input"),
        ({"input": []}, 400, "input"),
        ({"input": ["a", ""]}, 400, "input[1]"),
        ({"input": ["a", 5]}, 400, "input[1]"),
        ({"input": [5, 99]}, 400, "input[0]"),
        ({"input": "a " * 50}, 400, "input"),
        ({"input": ["a"] * 2049}, 400, "input"),
        ({"input": "a", "dimensions": 5}, 400, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, 400, "encoding_format"),
        ({"input": "a", "model": "tiny"}, 404, "model"),
        ({}, 400, "input"),
    ],
)
def test_refusals_name_the_field(
    served: tuple[Running, EmbeddingProcess], body: dict[str, Any], status: int, param: str
) -> None:
    response = served[0].post(ROUTE, body)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


def test_it_comes_back_after_its_process_died(
    served: tuple[Running, EmbeddingProcess], caplog: pytest.LogCaptureFixture
) -> None:
    server, process = served
    first = server.post(ROUTE, {"input": "cab"}).json()["data"]
    [child] = process._pool._processes
    os.kill(child, signal.SIGKILL)
    codes = []

    def back() -> bool:
        response = server.post(ROUTE, {"input": "cab"})
        codes.append(response.status_code)
        return response.status_code == 200 and response.json()["data"] == first

    until(back, "the encoder does not come back")
    assert set(codes) <= {200, 503}
    until(lambda: "the encoder is back" in caplog.messages, "its return is not told")
    assert caplog.messages.count("the encoder died; starting it again") == 1


def test_without_an_encoder_there_is_no_route(scripted: Running) -> None:
    assert scripted.post(ROUTE, {"input": "a"}).status_code == 404


def test_a_route_that_a_flag_adds_says_so(scripted: Running) -> None:
    for path, flag in (("/v1/embeddings", "--embedding-model"), ("/debug/profile", "--profile")):
        assert flag in scripted.post(path, {}).json()["error"]["message"]


def test_a_model_asked_for_the_other_kind_of_work_is_told(served: tuple[Running, EmbeddingProcess]) -> None:
    server, _ = served
    answer = server.post("/v1/completions", {"prompt": "a", "model": "enc"})
    assert (answer.status_code, "only makes embeddings" in answer.json()["error"]["message"]) == (404, True)
    answer = server.post(ROUTE, {"input": "a", "model": server.host.names[0]})
    assert (answer.status_code, "makes no embeddings" in answer.json()["error"]["message"]) == (404, True)
