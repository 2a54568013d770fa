"""Tenants at the door: keys, limits, turns, their own cache, the admin's view."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Semaphore
from typing import Any

import httpx
import pytest
from served import DEADLINE_S, LONG, Running, Script, SpyClient, held, running, scripted_llm, until

from headrace.api.http.host import HostLimits
from headrace.api.tenants.registry import Registry, Tenant, hash_key
from headrace.api.tenants.tenancy import Tenancy, TenancyLimits
from headrace.api.tenants.usage import UsageBook
from headrace.contract.errors import EngineDead, InvalidRequest
from headrace.contract.salts import MARK, joined
from headrace.grammar.backend import Vocabulary
from headrace.grammar.compiler import GrammarPool

CHAT = "/v1/chat/completions"
ENDLESS = {"messages": [{"role": "user", "content": "x"}], "max_tokens": LONG}


def tenant(name: str, **fields: Any) -> Tenant:
    return Tenant(name=name, key_sha256=hash_key(f"key-{name}"), **fields)


@contextmanager
def serving(
    script: Script,
    tenants: list[Tenant],
    path: Path | None = None,
    clock: Any = time.monotonic,
    max_open: int = 1024,
    grammars: GrammarPool | None = None,
    **limits: Any,
) -> Iterator[tuple[Running, Tenancy]]:
    tenancy = Tenancy(Registry(tenants), UsageBook(path), TenancyLimits(**limits), clock)
    with running(
        lambda: scripted_llm(script, grammars=grammars), tenancy=tenancy, limits=HostLimits(max_open=max_open)
    ) as server:
        yield server, tenancy


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def ask(server: Running, name: str | None, text: str = "x", **fields: Any) -> httpx.Response:
    headers = {} if name is None else {"authorization": f"Bearer key-{name}"}
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, **fields}
    return server.http.post(CHAT, json=body, headers=headers)


def test_no_key_no_work(script: Script) -> None:
    with serving(script, [tenant("a")]) as (server, _):
        for name in (None, "b", ""):
            refused = ask(server, name)
            assert refused.status_code == 401
            assert refused.json()["error"]["code"] == "invalid_api_key"
        assert server.http.get("/v1/models").status_code == 401
        assert server.http.get("/health").status_code == 200
        assert server.http.get("/load").json()["needs_key"] is True
        message = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        assert server.post("/v1/messages", message).json()["error"]["type"] == "authentication_error"
        assert server.http.post("/v1/messages", json=message, headers={"x-api-key": "key-a"}).status_code == 200
        assert len(server.requests) == 1


def test_rates_are_kept_with_a_time_to_come_back(script: Script) -> None:
    tenants, clock = [tenant("a", requests_per_min=2), tenant("b", tokens_per_min=40), tenant("c")], Clock()
    with serving(script, tenants, clock=clock) as (server, _):
        answers = [ask(server, "a") for _ in range(3)]
        assert [one.status_code for one in answers] == [200, 200, 429]
        assert answers[2].headers["retry-after"] == "30"
        clock.now = 30.0
        assert ask(server, "a").status_code == 200
        assert ask(server, "b", max_tokens=200).status_code == 200
        server.settled()
        late = ask(server, "b")
        assert late.status_code == 429
        assert int(late.headers["retry-after"]) > 100  # the answer was long: the debt is paid first
        assert ask(server, "c").status_code == 200


def test_caches_are_apart_unless_shared(script: Script) -> None:
    tenants = [tenant("a"), tenant("b"), *(tenant(name, share_cache=True) for name in "cd")]
    with serving(script, tenants) as (server, _):
        for name in "abcd":
            ask(server, name, cache_salt="s")
        salts = [request.cache_salt for request in server.requests]
        assert salts == [*(joined("tenant", name, "s") for name in "ab"), *[joined("shared", "s")] * 2]
        assert [request.tenant for request in server.requests] == [*"abcd"]


def test_nobody_spells_another_tenant_s_salt(script: Script) -> None:
    with serving(script, [tenant("a"), tenant("b", share_cache=True)]) as (server, _):
        ask(server, "a")
        [theirs] = [request.cache_salt for request in server.requests]
        refused = ask(server, "b", cache_salt=theirs)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "cache_salt")
        assert ask(server, "b", cache_salt=theirs.replace(MARK, "")).status_code == 200
        assert len({request.cache_salt for request in server.requests}) == len(server.requests) == 2


def test_turns_are_waited_for_and_given_up(script: Script) -> None:
    tenants = [tenant("a"), tenant("b")]
    with serving(held(script), tenants, slots=1, max_waiting=1) as (server, tenancy):
        running_one = server.send_raw(CHAT, ENDLESS, "key-a")
        until(lambda: tenancy.queue.running("a") == 1, "the first is not let in")
        waiting_one = server.send_raw(CHAT, ENDLESS, "key-a")
        until(lambda: tenancy.queue.waiting("a") == 1, "the second does not wait")
        refused = ask(server, "a")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert len(server.requests) == 1
        waiting_one.close()
        until(lambda: tenancy.queue.waiting("a") == 0, "one that went away keeps its place")
        running_one.close()
        until(lambda: tenancy.queue.running("a") == 0, "one that went away keeps its slot")
        assert ask(server, "b").status_code == 200
        until(lambda: server.host.num_open == 0, "something is still open")


def test_a_wait_has_an_end(script: Script) -> None:
    with serving(held(script), [tenant("a")], slots=1, wait_s=0.05) as (server, tenancy):
        long_one = server.send_raw(CHAT, ENDLESS, "key-a")
        until(lambda: tenancy.queue.running("a") == 1, "the first is not let in")
        for stream in (False, True):
            refused = ask(server, "a", stream=stream)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_timeout")
        long_one.close()


def test_usage_is_counted_and_survives_a_restart(script: Script, tmp_path: Path) -> None:
    tenants, path = [tenant("a"), tenant("root", admin=True, requests_per_min=9)], tmp_path / "usage.sqlite"
    with serving(script, tenants, path) as (server, _):
        usage = ask(server, "a").json()["usage"]
        server.settled()
    with serving(script, tenants, path) as (server, _):
        assert ask(server, "a", stream=True).status_code == 200
        server.settled()
        assert server.http.get("/admin/tenants", headers={"x-api-key": "key-a"}).status_code == 403
        view = server.http.get("/admin/tenants", headers={"x-api-key": "key-root"}).json()["tenants"]
    told = {one["name"]: one for one in view}
    assert told["a"]["usage"]["requests"] == 2
    assert len(told["a"]["usage"]["since"]) == len("2026-01-31")
    assert told["a"]["usage"]["generation_tokens"] == 2 * usage["completion_tokens"]
    assert told["a"]["usage"]["prompt_tokens"] == 2 * usage["prompt_tokens"]
    assert told["root"]["requests_left"] == 9
    assert not any("key" in field or "sha" in field for one in view for field in one)


def test_tenants_are_seen_in_the_metrics(script: Script) -> None:
    clock = Clock()
    tenants = [tenant("a"), tenant("b")]
    with serving(held(script), tenants, slots=1, clock=clock) as (server, tenancy):
        first, second = server.send_raw(CHAT, ENDLESS, "key-a"), server.send_raw(CHAT, ENDLESS, "key-b")
        until(lambda: sum(map(tenancy.queue.waiting, "ab")) == 1, "nobody waits")
        text = server.http.get("/metrics").text
        assert "headrace_requests_queued 1.0" in text  # in the fair queue: the engine knows nothing of it
        clock.now += 3.0
        for bare in (first, second):
            bare.close()
        until(lambda: server.host.num_open == 0, "something is still open")
        usage = ask(server, "a").json()["usage"]
        text = server.http.get("/metrics").text
        known = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("headrace_tenant_"))
    assert known['headrace_tenant_requests_waiting{tenant="a"}'] == "0.0"
    waited = {name: float(known[f'headrace_tenant_wait_seconds_total{{tenant="{name}"}}']) for name in "ab"}
    assert sorted(waited.values()) == [0.0, 3.0]
    turns = sum(float(known[f'headrace_tenant_turns_total{{tenant="{name}"}}']) for name in "ab")
    assert turns in (2, 3)  # whoever waited may have had a turn just before it went
    assert float(known['headrace_tenant_generation_tokens_total{tenant="a"}']) >= usage["completion_tokens"]
    assert float(known['headrace_tenant_prompt_tokens_total{tenant="a"}']) >= usage["prompt_tokens"]


def test_the_engine_takes_the_lesser_served_first(script: Script) -> None:
    with serving(script, [tenant("a"), tenant("b")]) as (server, _):
        for name in "aab":
            assert ask(server, name, priority=-5).status_code == 200
            server.settled()
        prompt, answer = len(server.requests[0].prompt_token_ids), 4
        told = [request.priority for request in server.requests]  # not what the client asked for
        assert told == [prompt, 2 * prompt + answer, 3 * prompt + 2 * answer]  # who was idle begins level with the last


def test_a_request_wider_than_a_tenants_share_goes_in_parts(script: Script) -> None:
    tenants, hold = [tenant("a"), tenant("b")], held(script, None)
    with serving(hold, tenants, slots=8) as (server, tenancy), ThreadPoolExecutor(2) as pool:
        wide = pool.submit(ask, server, "a", n=20)
        until(lambda: len(server.requests) == 6, "its first part is not there")
        other = pool.submit(ask, server, "b")
        until(lambda: len(server.requests) == 7, "another tenant is held up")
        assert (tenancy.queue.running("a"), tenancy.queue.waiting("a"), tenancy.waiting["a"]) == (6, 14, 0)
        assert hold.hold is not None
        hold.hold.release()
        assert other.result().status_code == 200
        answer = wide.result().json()
        server.settled()
        assert [choice["finish_reason"] for choice in answer["choices"]] == ["length"] * 20
        book = tenancy.usage.totals()["a"]
        assert {name: book[name] for name in ("prompt_tokens", "generation_tokens")} == {
            "prompt_tokens": answer["usage"]["prompt_tokens"],
            "generation_tokens": answer["usage"]["completion_tokens"],
        }


def test_one_tenant_cannot_fill_the_queue_for_all(script: Script) -> None:
    tenants = [tenant("a"), tenant("b")]
    with serving(held(script), tenants, max_open=4) as (server, _):
        kept = [server.send_raw(CHAT, ENDLESS, "key-a") for _ in range(2)]
        until(lambda: server.host.num_open == 2, "they are not open")
        refused = ask(server, "a")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert "2 sequences of a are open" in refused.json()["error"]["message"]
        assert ask(server, "b", n=2).status_code == 200
        until(lambda: server.host.num_open == 2, "b's places do not come back")  # its answer may be read before that
        assert ask(server, "b", n=3).json()["error"]["param"] == "n"  # it could never be let in
        for one in kept:
            one.close()
        server.settled()
        assert ask(server, "a").status_code == 200


def test_what_had_no_turn_is_not_charged(script: Script) -> None:
    tenants, clock = [tenant("a", tokens_per_min=1000)], Clock()
    with serving(held(script), tenants, clock=clock, slots=1, wait_s=0.05) as (server, tenancy):
        long_one = server.send_raw(CHAT, ENDLESS, "key-a")
        until(lambda: tenancy.queue.running("a") == 1, "the first is not let in")
        prompt = tenancy.usage.totals()["a"]["prompt_tokens"]
        assert prompt > 0
        assert ask(server, "a", text="y" * 100).status_code == 429
        long_one.close()
        server.settled()
        used = tenancy.usage.totals()["a"]
        assert used["prompt_tokens"] == prompt
        assert tenancy.view({})[0]["tokens_left"] == 1000 - prompt - used["generation_tokens"]


def slow_grammars(began: Semaphore, go: Event) -> GrammarPool:
    """Compiles nothing until it is let go; then everything is allowed."""

    class Backend:
        def __init__(self, vocabulary: Vocabulary) -> None: ...

        def compile(self, wanted: Any) -> Any:
            began.release()
            assert go.wait(DEADLINE_S)
            raise InvalidRequest(wanted.field, "is too long in coming")

        def matcher(self, compiled: Any) -> Any: ...
        def num_bytes(self, compiled: Any) -> int: ...

    return GrammarPool(lambda: Vocabulary([], (2,)), timeout_s=2 * DEADLINE_S, open_backend=Backend)


def test_a_constraint_that_compiles_holds_no_other_up(script: Script) -> None:
    began, go = Semaphore(0), Event()
    grammars, tenants = slow_grammars(began, go), [tenant(name) for name in "abc"]
    with (
        serving(script, tenants, grammars=grammars, window=64) as (server, tenancy),
        ThreadPoolExecutor(2) as pool,
    ):
        structured = [pool.submit(ask, server, name, "y" * 100, structured_outputs={"regex": name}) for name in "ab"]
        assert all(began.acquire(timeout=DEADLINE_S) for _ in structured)
        assert (tenancy.queue.running("a"), tenancy.queue.running("b")) == (1, 1)
        assert ask(server, "c").status_code == 200
        assert ask(server, "a").status_code == 200
        assert not any(one.done() for one in structured)
        go.set()
        assert [one.result().status_code for one in structured] == [400, 400]


def test_what_no_engine_got_is_not_charged(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    tenants, clock = [tenant("a", tokens_per_min=1000), tenant("b")], Clock()
    with serving(script, tenants, clock=clock) as (server, tenancy):

        def submit(*_: Any) -> None:
            raise EngineDead("it died while they waited for their turn")

        with monkeypatch.context() as patched:
            patched.setattr(server.client, "submit", submit)
            assert [ask(server, "a", n=n).status_code for n in (1, 2)] == [503, 503]
        server.settled()
        assert tenancy.usage.totals()["a"] | {"since": ""} == {
            "since": "",
            "requests": 2,
            "prompt_tokens": 0,
            "cached_tokens": 0,
            "generation_tokens": 0,
        }
        assert tenancy.view({})[0]["tokens_left"] == 1000
        assert ask(server, "a").status_code == 200
        assert server.requests[-1].priority == len(server.requests[-1].prompt_token_ids)  # as if it were the first


def test_an_engine_that_is_not_ready_is_told_of_before_anything_is_charged(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of it, such as the prompt engine of a pair, may be starting again while the rest is alive."""
    with serving(script, [tenant("a"), tenant("b")]) as (server, tenancy):
        with monkeypatch.context() as patched:
            patched.setattr(SpyClient, "ready", False)
            refused = ask(server, "a")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert tenancy.usage.totals() == {}
        assert ask(server, "a").status_code == 200


def test_a_database_that_fails_is_named_and_costs_no_request(script: Script, tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    with serving(script, [tenant("root", admin=True)], path) as (server, _):
        with sqlite3.connect(path) as db:
            db.execute("DROP TABLE usage")
        assert ask(server, "root").status_code == 200
        refused = server.http.get("/admin/tenants", headers={"authorization": "Bearer key-root"})
        assert refused.status_code == 503
        assert "database of usage" in refused.json()["error"]["message"]
        assert ask(server, "root").status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "x"}),
        ("/detokenize", {"tokens": [1]}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "x"}]}),
    ],
)
def test_a_rate_counts_every_request_that_makes_work(script: Script, path: str, body: dict[str, Any]) -> None:
    with serving(script, [tenant("a", requests_per_min=1), tenant("b")], clock=Clock()) as (server, _):
        statuses = [
            server.http.post(path, json=body, headers={"x-api-key": f"key-{name}"}).status_code for name in "aab"
        ]
        assert statuses == [200, 429, 200]
