"""Who may use the encoder and when: room for all and for each tenant, turns, clients that go away, ends. Its process is
a pretended one that waits for the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from served import Running, Script, running, scripted_llm, until
from test_stopping import WORDS, begin_drain, end_at_once
from test_tenants import Clock, tenant

from headrace.api.http import embeddings as embeddings_module
from headrace.api.http.app import AppSettings
from headrace.api.http.embeddings import Embeddings
from headrace.api.tenants.registry import Registry
from headrace.api.tenants.tenancy import Tenancy
from headrace.api.tenants.usage import UsageBook
from headrace.contract.errors import EngineDead

ROUTE = "/v1/embeddings"


class PretendedProcess:
    """One id per character. ``pieces`` are those that came; they are done when the test lets them ``go``."""

    def __init__(self) -> None:
        self.inputs = SimpleNamespace(size=1, ids=lambda text, _field: [ord(char) for char in text])
        self.go = threading.Event()
        self.dies = False
        self.pieces: list[list[list[int]]] = []

    async def vectors(self, piece: list[list[int]]) -> list[list[float]]:
        self.pieces.append(piece)
        while not self.go.is_set():
            await asyncio.sleep(0.005)
        if self.dies:
            raise EngineDead("the encoder died")
        return [[float(ids[0])] for ids in piece]

    def leave(self) -> None:
        """Nothing has no successor."""

    def close(self) -> None:
        self.go.set()


@contextmanager
def serving(script: Script, *names: str) -> Iterator[tuple[Running, Any, Embeddings, Tenancy]]:
    tenants = [tenant(name, tokens_per_min=1000, requests_per_min=10) for name in names]
    tenancy = Tenancy(Registry(tenants), UsageBook(None), clock=Clock())
    process: Any = PretendedProcess()
    embeddings = Embeddings(process, "enc")
    settings = AppSettings(embeddings=embeddings)
    with running(lambda: scripted_llm(script), drain_s=600, settings=settings, tenancy=tenancy) as server:
        yield server, process, embeddings, tenancy


def ask(server: Running, name: str, texts: list[str]) -> httpx.Response:
    return server.http.post(ROUTE, json={"input": texts}, headers={"x-api-key": f"key-{name}"})


def left(tenancy: Tenancy) -> tuple[int, int]:
    first = tenancy.view({})[0]
    return first["requests_left"], first["tokens_left"]


def test_a_tenant_has_half_the_room_and_pays_nothing_for_a_refusal(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embeddings_module, "MAX_OPEN", 2)
    with serving(script, "a", "b") as (server, process, _, tenancy), ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, server, "a", ["xyz"])
        until(lambda: len(process.pieces) == 1, "it does not come to the encoder")
        refused = ask(server, "a", ["more"])
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert left(tenancy) == (9, 997)
        other = pool.submit(ask, server, "b", ["b"])
        until(lambda: len(process.pieces) == 2, "another tenant is kept out")
        assert ask(server, "b", ["c"]).status_code == 429  # all of it is taken
        process.go.set()
        assert first.result().json()["data"][0]["embedding"] == [float(ord("x"))]
        assert other.result().status_code == 200
        assert tenancy.usage.totals()["a"] | {"cached_tokens": 0, "since": ""} == {
            "since": "",
            "requests": 1, "prompt_tokens": 3, "cached_tokens": 0, "generation_tokens": 0,
        }  # fmt: skip


def test_who_comes_waits_for_a_piece_of_anothers_request(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings_module, "PIECE", 1)
    with serving(script, "a", "b") as (server, process, _, _tenancy), ThreadPoolExecutor(2) as pool:
        large = pool.submit(ask, server, "a", ["1", "2", "3"])
        until(lambda: len(process.pieces) == 1, "it does not come to the encoder")
        small = pool.submit(ask, server, "b", ["b"])
        until(lambda: len(process.pieces) == 2, "it waits for all of a large request")
        process.go.set()
        assert [one["embedding"] for one in large.result().json()["data"]] == [[49.0], [50.0], [51.0]]
        assert small.result().json()["data"][0]["embedding"] == [98.0]


def test_a_client_that_goes_away_pays_for_what_the_encoder_has_and_no_more(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embeddings_module, "PIECE", 1)
    with serving(script, "a") as (server, process, embeddings, tenancy):
        gone = server.send_raw(ROUTE, {"input": ["xyz", "never"]}, "key-a")
        until(lambda: len(process.pieces) == 1, "it does not come to the encoder")
        assert embeddings.num_open == 1
        gone.close()
        until(lambda: embeddings.num_open == 0, "one that went away keeps its place")
        assert left(tenancy) == (9, 997)
        assert tenancy.usage.totals()["a"]["prompt_tokens"] == 3
        assert embeddings._queue.running("a") == 1  # the encoder is still at it
        process.go.set()
        until(lambda: embeddings._queue.running("a") == 0, "its turn does not end")
        assert len(process.pieces) == 1


def test_what_an_encoder_that_died_had_is_not_paid_for(script: Script) -> None:
    with serving(script, "a") as (server, process, embeddings, tenancy):
        process.dies = True
        process.go.set()
        assert ask(server, "a", ["xyz"]).status_code == 503
        assert left(tenancy) == (9, 1000)
        assert tenancy.usage.totals()["a"]["prompt_tokens"] == 0
        assert (embeddings.num_open, embeddings._queue.running("a")) == (0, 0)


def test_a_drain_waits_for_embeddings(script: Script) -> None:
    with serving(script, "a") as (server, process, _, _tenancy), ThreadPoolExecutor(1) as pool:
        kept = pool.submit(ask, server, "a", ["xyz"])
        until(lambda: server.host.num_requests == 1, "it is not counted")
        begin_drain(server)
        assert ask(server, "a", ["more"]).json()["error"]["code"] == "stopping"
        assert not server.server.should_exit
        process.go.set()
        assert kept.result().status_code == 200
        until(lambda: server.server.should_exit, "the drain does not end")


def test_hurried_they_are_told_that_the_server_stops(script: Script) -> None:
    with serving(script, "a") as (server, _, _embeddings, _tenancy), ThreadPoolExecutor(1) as pool:
        cut = pool.submit(ask, server, "a", ["xyz"])
        until(lambda: server.host.num_requests == 1, "it is not counted")
        begin_drain(server)
        end_at_once(server)
        answer = cut.result()
        assert (answer.status_code, answer.json()["error"]["message"]) == (503, WORDS)
