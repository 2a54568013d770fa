"""What a server that stops says to whom: requests under way, requests in a queue, embeddings, whoever started it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from served import LONG, Running, Script, held, running, scripted_llm, until
from test_tenants import CHAT, ENDLESS, ask, tenant

from headrace.api.http.app import AppSettings
from headrace.api.http.embeddings import Embeddings
from headrace.api.http.server import Server
from headrace.api.tenants.registry import Registry
from headrace.api.tenants.tenancy import Tenancy, TenancyLimits
from headrace.api.tenants.usage import UsageBook

WORDS = "the server is stopping"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: ENDLESS,
    "/v1/completions": {"prompt": "x", "max_tokens": LONG},
    "/v1/messages": ENDLESS,
    "/v1/responses": {"input": "x", "max_output_tokens": LONG},
}


def begin_drain(server: Running) -> None:
    server.server._post(server.server.begin_drain)
    until(lambda: server.host.draining, "it does not drain")


def end_at_once(server: Running) -> None:
    server.server._post(server.server.end_at_once)


def last_error(lines: list[str]) -> dict[str, Any]:
    told = json.loads([line[6:] for line in lines if line.startswith("data: ")][-1])
    error: dict[str, Any] = told["error"] if "error" in told else told["response"]["error"]
    return error


def test_hurried_every_protocol_ends_its_streams_with_its_error(script: Script) -> None:
    with running(lambda: scripted_llm(held(script)), drain_s=600) as server, ExitStack() as streams:
        opened = [server.http.stream("POST", r, json={**b, "stream": True}) for r, b in BODIES.items()]
        lines = [streams.enter_context(one).iter_lines() for one in opened]
        for one in lines:
            next(one)
        said: list[str] = []
        server.server._say = said.append
        begin_drain(server)
        end_at_once(server)
        for one in lines:
            assert WORDS in json.dumps(last_error(list(one)))
        until(lambda: server.host.num_open == 0, "a request stays open")
    assert said == [
        "finishing 4 requests, at most 600 s; Ctrl-C again ends at once",
        "ending at once: 4 requests cut short",
    ]


def test_a_drain_that_runs_out_says_how_many_it_cut(script: Script) -> None:
    said: list[str] = []
    with running(lambda: scripted_llm(held(script)), drain_s=0) as server, ExitStack() as streams:
        opened = server.http.stream("POST", CHAT, json={**ENDLESS, "stream": True})
        lines = streams.enter_context(opened).iter_lines()
        next(lines)
        server.server._say = said.append
        begin_drain(server)
        assert WORDS in json.dumps(last_error(list(lines)))
    assert said == ["finishing 1 request, at most 0 s; Ctrl-C again ends at once", "0 s are over: 1 request cut short"]


def test_who_waits_for_a_turn_and_who_waits_for_a_whole_answer_get_503(script: Script) -> None:
    tenancy = Tenancy(Registry([tenant("a")]), UsageBook(None), TenancyLimits(slots=1))
    with (
        running(lambda: scripted_llm(held(script)), drain_s=600, tenancy=tenancy) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        asked = [pool.submit(ask, server, "a", max_tokens=LONG) for _ in range(2)]
        until(lambda: server.host.num_requests == 2 and tenancy.queue.waiting("a") == 1, "they are not there")
        begin_drain(server)
        end_at_once(server)
        answers = [one.result() for one in asked]
    assert [answer.status_code for answer in answers] == [503, 503]
    assert all(answer.json()["error"] == answers[0].json()["error"] for answer in answers)
    assert answers[0].json()["error"]["message"] == WORDS


def test_a_drain_takes_no_embeddings_and_tells_the_encoder(script: Script) -> None:
    told: list[bool] = []
    process: Any = SimpleNamespace(leave=lambda: told.append(True), close=lambda: None)
    settings = AppSettings(embeddings=Embeddings(process, "enc"))
    with running(lambda: scripted_llm(held(script)), drain_s=600, settings=settings) as server:
        kept = server.send_raw(CHAT, ENDLESS)  # else the drain is over at once
        until(lambda: server.host.num_open == 1, "it is not open")
        begin_drain(server)
        assert server.post("/v1/embeddings", {"input": "x"}).status_code == 503
        kept.close()
    assert told == [True]


def test_a_signal_before_there_is_a_loop_is_not_lost(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[bool] = []
    monkeypatch.setattr(Server, "begin_drain", lambda self: begun.append(self._main is not None))
    monkeypatch.setattr(Server, "__init__", _signalled(Server.__init__))
    with running(lambda: scripted_llm(script)):
        pass
    assert begun == [True]


def _signalled(made: Any) -> Any:
    def make(self: Server, *given: Any) -> None:
        made(self, *given)
        self.handle_exit(15, None)

    return make
