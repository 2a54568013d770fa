"""Bodies on their way in: bounded in bytes, number and time; large work holds up no small work."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
import pytest
from starlette.requests import Request

from headrace.api.http import body
from headrace.api.http.body import HELD_BODIES, LARGE_BYTES, MAX_LARGE, MAX_SMALL, Intake
from headrace.api.http.errors import HttpError
from headrace.api.tenants.registry import Tenant

DEADLINE_S = 60.0
SCOPE = {"type": "http", "method": "POST", "path": "/", "headers": [(b"content-type", b"application/json")]}


def on_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @functools.wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


class Body(msgspec.Struct):
    text: str


def request_of(raw: bytes, more: Callable[[], Awaitable[Any]] | None = None) -> Request:
    chunks = [{"type": "http.request", "body": raw, "more_body": more is not None}]

    async def receive() -> Any:
        return chunks.pop() if chunks else await more()  # type: ignore[misc]

    return Request(dict(SCOPE), receive)


def of(name: str, request: Request) -> Request:
    """The same, from a tenant."""
    request.scope.setdefault("state", {})["tenant"] = Tenant(name=name, key_sha256="0" * 64)
    return request


def sized(num_bytes: int) -> Request:
    request = request_of(b"")
    request.state.large = num_bytes >= LARGE_BYTES
    return request


async def never() -> Any:
    await asyncio.Event().wait()


@on_a_loop
async def test_large_work_holds_up_no_small_work() -> None:
    intake, go = Intake(1 << 20, 5.0), threading.Event()
    held = [asyncio.create_task(intake.work(sized(LARGE_BYTES), go.wait, 60)) for _ in range(MAX_LARGE)]
    await asyncio.sleep(0)
    try:
        assert await intake.work(sized(10), lambda: "small") == "small"
        assert not any(task.done() for task in held)
        with pytest.raises(HttpError, match="too many large requests") as refused:
            await intake.work(sized(LARGE_BYTES), lambda: "one too many")
        assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "1"})
    finally:
        go.set()
    assert await asyncio.gather(*held) == [True] * MAX_LARGE
    assert await intake.work(sized(LARGE_BYTES), lambda: "room again") == "room again"
    intake.close()


@on_a_loop
async def test_bodies_under_way_are_bounded_together() -> None:
    intake = Intake(1000, 30.0)
    readers = [asyncio.create_task(intake.read(request_of(b"x" * 1000, never), Body)) for _ in range(HELD_BODIES)]
    await asyncio.sleep(0.01)
    raw = json.dumps({"text": "hello"}).encode()
    with pytest.raises(HttpError) as refused:
        await intake.read(request_of(raw), Body)
    assert refused.value.status == 429
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    assert (await intake.read(request_of(raw), Body)).text == "hello"
    intake.close()


@on_a_loop
async def test_a_silent_sender_is_let_go() -> None:
    intake = Intake(1000, 0.01)
    with pytest.raises(HttpError, match="did not come within") as refused:
        await intake.read(request_of(b'{"text":', never), Body)
    assert refused.value.status == 408
    intake.close()


@on_a_loop
async def test_a_body_that_drips_is_not_waited_for_for_ever() -> None:
    async def drip() -> Any:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b" ", "more_body": True}

    async with asyncio.timeout(60):  # it ends by the bound or not at all
        with pytest.raises(HttpError) as refusal:
            await Intake(1 << 20, 0.2).read(request_of(b"{", drip), Body)
    assert refusal.value.status == 408


@on_a_loop
async def test_no_tenant_uses_up_what_is_held_for_all() -> None:
    intake, raw = Intake(1000, 30.0), json.dumps({"text": "hello"}).encode()
    half = [of("a", request_of(b"x" * 1000, never)) for _ in range(HELD_BODIES // 2)]
    readers = [asyncio.create_task(intake.read(request, Body)) for request in half]
    await asyncio.sleep(0.01)
    with pytest.raises(HttpError) as refused:
        await intake.read(of("a", request_of(raw)), Body)
    assert refused.value.status == 429
    assert (await intake.read(of("b", request_of(raw)), Body)).text == "hello"
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    assert (await intake.read(of("a", request_of(raw)), Body)).text == "hello"
    assert not intake._held
    intake.close()


@on_a_loop
async def test_no_tenant_uses_up_the_places_for_large_work() -> None:
    intake, go = Intake(1 << 20, 5.0), threading.Event()
    held = [asyncio.create_task(intake.work(of("a", sized(LARGE_BYTES)), go.wait, 60)) for _ in range(MAX_LARGE // 2)]
    await asyncio.sleep(0)
    with pytest.raises(HttpError, match="too many large requests"):
        await intake.work(of("a", sized(LARGE_BYTES)), lambda: "one too many")
    other = asyncio.create_task(intake.work(of("b", sized(LARGE_BYTES)), lambda: "of another"))
    go.set()
    assert await other == "of another"
    assert await asyncio.gather(*held) == [True] * (MAX_LARGE // 2)
    intake.close()


class Shown(msgspec.Struct):
    messages: list[dict[str, Any]]


@on_a_loop
async def test_pictures_are_large_work_whatever_their_bytes() -> None:
    """A file of some kilobytes can hold as many pixels as are read at all."""
    intake, go = Intake(1 << 20, 5.0), threading.Event()
    held = [asyncio.create_task(intake.work(sized(LARGE_BYTES), go.wait, 60)) for _ in range(MAX_LARGE)]
    await asyncio.sleep(0)
    try:
        for part, large in (({"type": "image_url"}, True), ({"type": "text", "text": "image_url"}, False)):
            request = request_of(json.dumps({"messages": [{"content": [part]}]}).encode())
            await intake.read(request, Shown)
            if large:
                with pytest.raises(HttpError, match="too many large requests"):
                    await intake.work(request, lambda: "a picture")
            else:
                assert await intake.work(request, lambda: "a text") == "a text"
    finally:
        go.set()
    assert await asyncio.gather(*held) == [True] * MAX_LARGE
    intake.close()


def waiting(intake: Intake, owner: str, go: threading.Event) -> asyncio.Task[bool]:
    """Small work of this tenant that lasts until it is let go."""
    return asyncio.create_task(intake.work(of(owner, sized(10)), go.wait, DEADLINE_S))


@on_a_loop
async def test_small_work_is_bounded_too_and_one_tenant_gets_half() -> None:
    intake, go = Intake(1 << 20, 5.0), threading.Event()
    held = [waiting(intake, "a", go) for _ in range(MAX_SMALL // 2)]
    await asyncio.sleep(0)
    try:
        with pytest.raises(HttpError, match="too many requests are being read") as refused:
            await intake.work(of("a", sized(10)), lambda: "one too many")
        assert (refused.value.status, refused.value.code) == (429, "queue_full")
        held += [waiting(intake, f"b{i}", go) for i in range(MAX_SMALL // 2)]
        await asyncio.sleep(0)
        with pytest.raises(HttpError, match="too many requests"):
            await intake.work(of("c", sized(10)), lambda: "one too many for all")
    finally:
        go.set()
    assert all(await asyncio.gather(*held))
    intake.close()


def test_tenants_take_turns_at_small_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "SMALL_THREADS", 1)  # so that there is an order

    async def run() -> None:
        intake, go, done = Intake(1 << 20, 5.0), threading.Event(), list[str]()
        first = waiting(intake, "a", go)
        others = [asyncio.create_task(intake.work(of(name, sized(10)), done.append, name)) for name in "aaaaab"]
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(first, *others)
        assert done.index("b") <= 1  # a's burst was there before, and waits for it
        intake.close()

    asyncio.run(run())
