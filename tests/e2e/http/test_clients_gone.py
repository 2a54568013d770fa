"""Clients that go away, take nothing or send nothing: what they held comes back, and nobody waits for them."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import replace
from typing import Any

import pytest
from served import DEADLINE_S, Script, Turnstile, running, scripted_llm, until

from headrace.api.http.arrivals import Finished
from headrace.api.http.host import HostLimits

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SAYS = {"messages": [{"role": "user", "content": "x"}]}
FURTHER = 1  # step beyond the one under way: it may have been planned already


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", [CHAT, TEXT])
def test_s25_a_client_that_goes_away_frees_everything_at_once(script: Script, stream: bool, route: str) -> None:
    """At once, in the engine's own measure: it is told while it stands still, and then ends within a step or two."""
    turnstile = Turnstile(20)
    with running(lambda: scripted_llm(replace(script, hold=turnstile))) as server:
        what: dict[str, Any] = SAYS if route == CHAT else {"prompt": "x"}
        bare = server.send_raw(route, {**what, "max_tokens": 10_000, "stream": stream})
        until(lambda: turnstile.num_came == 21, "it never ran")
        assert server.engine.stats.used_blocks > 0
        bare.close()
        until(lambda: len(server.client.aborted) == 1, "the engine is not told before its next token")
        turnstile.admit(1 + FURTHER)
        server.settled()
        until(lambda: server.engine.stats.used_blocks == 0, "its memory is still in use")
        assert turnstile.num_came <= 21 + FURTHER


BEHIND = {"a line": b"\r\n", "requests": b"GET /health HTTP/1.1\r\nhost: here\r\n\r\n" * 3}


@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)
@pytest.mark.parametrize("later", [False, True])
def test_s25_a_client_that_sent_more_than_its_request_is_missed_too(script: Script, behind: bytes, later: bool) -> None:
    turnstile = Turnstile(20)
    with running(lambda: scripted_llm(replace(script, hold=turnstile))) as server:
        bare = server.send_raw(CHAT, {**SAYS, "max_tokens": 10_000}, behind=b"" if later else behind)
        until(lambda: turnstile.num_came == 21, "it never ran")
        if later:
            bare.sendall(behind)
        bare.close()
        until(lambda: len(server.client.aborted) == 1, "nobody sees that it is gone")
        turnstile.admit(1 + FURTHER)
        server.settled()


@pytest.mark.parametrize("later", [False, True])
def test_what_comes_behind_a_request_is_answered_after_it(script: Script, later: bool) -> None:
    turnstile = Turnstile(20)
    behind = BEHIND["requests"] + b"GET /version HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n"
    with running(lambda: scripted_llm(replace(script, hold=turnstile))) as server:
        bare = server.send_raw(CHAT, {**SAYS, "max_tokens": 30}, behind=b"" if later else behind[:50])
        until(lambda: turnstile.num_came == 21, "it never ran")
        bare.sendall(behind if later else behind[50:])
        turnstile.admit(100)
        with bare, bare.makefile("rb") as file:
            told = file.read()
        assert told.count(b"HTTP/1.1 200") == 5
        assert told.index(b"chat.completion") < told.index(b'"status":"ok"') < told.index(b'"version"')


def test_a_reader_that_takes_nothing_is_let_go(script: Script) -> None:
    limits = HostLimits(write_timeout_s=0.3)
    with running(lambda: scripted_llm(script), limits=limits) as server:
        told: list[Finished] = []
        server.host.observers.append(lambda finished, _: told.append(finished))
        bare = server.send_raw(TEXT, {"prompt": "x", "n": 40, "max_tokens": 19_000, "stream": True})
        until(lambda: len(told) == 1, "a client that never reads holds its places")
        assert told[0].error == "abort"
        until(lambda: server.host.num_open == server.engine.stats.used_blocks == 0, "and its memory")
        bare.close()


def test_a_client_that_asks_and_asks_and_takes_nothing_is_let_go(script: Script) -> None:
    limits = HostLimits(write_timeout_s=0.4)
    with running(lambda: scripted_llm(script), limits=limits) as server, socket.socket() as bare:
        bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        bare.connect(("127.0.0.1", server.port))
        size = len(server.http.get("/metrics").content)
        server.http.close()
        asked = (16 << 20) // size  # far more than a kernel keeps for it
        bare.sendall(b"GET /metrics HTTP/1.1\r\nhost: here\r\n\r\n" * asked)
        bare.settimeout(DEADLINE_S)
        assert bare.recv(1) == b"H"  # it is being answered
        until(lambda: not server.server.server_state.connections, "it is waited for without end")
        took = 0
        with contextlib.suppress(ConnectionResetError):
            while piece := bare.recv(1 << 20):
                took += len(piece)
        assert took < asked * size


@pytest.mark.parametrize("begun", [b"", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nx-slow: "])
def test_a_connection_without_a_request_is_let_go(script: Script, begun: bytes) -> None:
    with (
        running(lambda: scripted_llm(script), limits=HostLimits(write_timeout_s=0.4)) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=60) as silent,
    ):
        silent.sendall(begun)
        with contextlib.suppress(ConnectionResetError):
            assert silent.recv(1) == b""  # without the bound nobody ends it
