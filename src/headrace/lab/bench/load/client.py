"""A client that costs little: HTTP/1.1 on plain asyncio streams, one connection per request, events timed as they come.

It reads answers only as far as the figures need them. Never retries: what fails is counted.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from headrace.contract.errors import ConfigError, HeadraceError

from .figures import Outcome

MAX_LINE = 1 << 20


class ServerError(HeadraceError):
    """The server refused, failed or went away."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where to send to. ``extra``: further fields of every body, for servers that want things said in their way."""

    url: str
    model: str | None = None
    key: str | None = None
    timeout_s: float = 600.0
    extra: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("url", f"must be http://HOST:PORT or https://HOST:PORT, got {self.url!r}")


async def ask(target: Target, prompt: list[int] | str, max_tokens: int) -> Outcome:
    """One streamed completion of exactly ``max_tokens`` tokens, greedy. Failures of any kind are in the outcome."""
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    body |= {"stream": True, "stream_options": {"include_usage": True}, **target.extra}
    if target.model is not None:
        body["model"] = target.model
    outcome = Outcome(perf_counter(), 0 if isinstance(prompt, str) else len(prompt))
    try:
        async with asyncio.timeout(target.timeout_s):
            async for event in _events(target, body):
                _take(outcome, event)
    except Exception as error:  # whatever one server says: the figures of all other requests must not go with it
        outcome.error = str(error) or type(error).__name__
    outcome.ended_s = perf_counter()
    if outcome.error is None and not outcome.times:
        outcome.error = "no token came"
    return outcome


def _take(outcome: Outcome, event: Any) -> None:
    now = perf_counter()
    if not isinstance(event, dict):
        raise ServerError(f"an event that is no object: {str(event)[:100]}")
    if error := event.get("error"):  # some servers write a text, and some a null beside every token
        raise ServerError(str(error.get("message", error) if isinstance(error, dict) else error))
    usage = event.get("usage")
    if usage:
        outcome.num_generated = _count(usage, "completion_tokens")
        outcome.num_prompt = _count(usage, "prompt_tokens") or outcome.num_prompt
        outcome.num_cached = _count(usage.get("prompt_tokens_details") or {}, "cached_tokens")
    if choices := event.get("choices"):
        outcome.times.append((now, sum(map(_num_tokens, choices))))


def _count(told: Any, name: str) -> int:
    """Figures of all requests are added up: what is no number of tokens fails its own."""
    value = told.get(name) if isinstance(told, dict) else told
    if value is None:
        return 0
    if type(value) is not int or value < 0:
        raise ServerError(f"{name} is no count: {str(value)[:50]}")
    return value


def _num_tokens(choice: dict[str, Any]) -> int:
    ids = choice.get("token_ids")
    return len(ids) if ids is not None else int(bool(choice.get("text")))


async def _events(target: Target, body: dict[str, Any]) -> AsyncIterator[Any]:
    raw = json.dumps(body).encode()
    reader, writer = await _open(target, "POST", "/v1/completions", raw)
    try:
        status, chunked = await _head(reader)
        if status != 200:
            raise ServerError(f"status {status}: {(await reader.read(300)).decode(errors='replace')}")
        async for line in _lines(reader, chunked):
            if not line.startswith(b"data:"):
                continue
            if (said := line[5:].removeprefix(b" ")) == b"[DONE]":
                return
            yield json.loads(said)
        raise ServerError("the stream ended before its end")
    finally:
        writer.close()


async def get_json(target: Target, route: str) -> Any:
    """A small JSON document. Raises ServerError."""
    try:
        async with asyncio.timeout(30):
            reader, writer = await _open(target, "GET", route, b"")
            try:
                status, chunked = await _head(reader)
                raw = b"".join([line async for line in _lines(reader, chunked)])
            finally:
                writer.close()
    except ConnectionRefusedError as error:
        hint = "start `headrace serve`, or say with --url where the server is"
        raise ServerError(f"{target.url}: nobody answers there; {hint}") from error
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, ServerError) as error:  # a deadline is an OSError
        raise ServerError(f"{target.url}{route}: {str(error) or type(error).__name__}") from error
    if status != 200:
        raise ServerError(f"{target.url}{route}: status {status}")
    try:
        return json.loads(raw)
    except ValueError as error:
        raise ServerError(f"{target.url}{route}: no JSON: {error}") from error


async def first_model(target: Target) -> str:
    """What the server calls the first model that it has. Raises ServerError."""
    told = await get_json(target, "/v1/models")
    try:
        name = told["data"][0]["id"]
    except (KeyError, IndexError, TypeError):
        name = None
    if not isinstance(name, str):
        raise ServerError(f"{target.url}/v1/models names no model; say with --model which one to ask")
    return name


async def _open(
    target: Target, method: str, route: str, body: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(target.url)
    tls = _tls() if parts.scheme == "https" else None
    port = parts.port or (443 if tls else 80)
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=tls, limit=MAX_LINE)
    lines = [f"{method} {parts.path.rstrip('/')}{route} HTTP/1.1", f"host: {parts.netloc}", "connection: close"]
    lines += [f"authorization: Bearer {target.key}"] if target.key else []
    lines += ["content-type: application/json", f"content-length: {len(body)}", "", ""]
    writer.write("\r\n".join(lines).encode() + body)
    await writer.drain()
    return reader, writer


@cache
def _tls() -> ssl.SSLContext:
    """Made once: it reads a file of certificates, which takes longer than many an answer."""
    return ssl.create_default_context()


async def _head(reader: asyncio.StreamReader) -> tuple[int, bool]:
    """The status, and whether the body comes in chunks."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status = head[0].split(" ")
    if len(status) < 2 or not status[1].isdecimal():
        raise ServerError(f"no HTTP: {head[0][:100]}")
    return int(status[1]), any(line.lower().replace(" ", "") == "transfer-encoding:chunked" for line in head)


async def _lines(reader: asyncio.StreamReader, chunked: bool) -> AsyncIterator[bytes]:
    """The body's lines without their ends; a last one that has none too."""
    held = b""
    async for piece in _pieces(reader, chunked):
        *lines, held = (held + piece).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r")
    if held:
        yield held


async def _pieces(reader: asyncio.StreamReader, chunked: bool) -> AsyncIterator[bytes]:
    while chunked:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        piece = await reader.readexactly(size + 2)
        if not size:
            return
        yield piece[:-2]
    while piece := await reader.read(1 << 16):
        yield piece
