"""Spans: one for every request that a model works for, by the GenAI conventions, in the caller's trace, no content."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_encoder
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from served import DEADLINE_S, LONG, Running, Script, held, running, scripted_llm, until
from test_tenants import tenant

from headrace.api.embedding_process import EmbeddingProcess
from headrace.api.http import spans
from headrace.api.http.app import AppSettings
from headrace.api.http.embeddings import Embeddings
from headrace.api.http.spans import SpanObserver
from headrace.api.tenants.registry import Registry
from headrace.api.tenants.tenancy import Tenancy
from headrace.api.tenants.usage import UsageBook

SECRET = "a most private question"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=what-it-likes"}


class Watched:
    """A server and the spans it made."""

    def __init__(self, server: Running, exporter: InMemorySpanExporter) -> None:
        self.server = server
        self._exporter = exporter

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> int:
        return self.server.http.post(path, json=body, headers=headers or {}).status_code

    def span(self) -> ReadableSpan:
        """The one that was made since the last time."""
        until(lambda: len(self._exporter.get_finished_spans()) == 1, "no span is made")
        [span] = self._exporter.get_finished_spans()
        self._exporter.clear()
        return span


@contextmanager
def watched(script: Script, **given: Any) -> Iterator[Watched]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with running(lambda: scripted_llm(script), **given) as server:
        server.host.observers.append(SpanObserver(provider.get_tracer("test")))
        yield Watched(server, exporter)


def known(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def place(server: Running) -> dict[str, Any]:
    return {"server.address": server.http.base_url.host, "server.port": server.http.base_url.port}


def test_a_span_has_the_conventions_attributes_and_the_callers_trace(script: Script) -> None:
    with watched(script, names=["tiny", "other-name"]) as seen:
        body: dict[str, Any] = {"prompt": SECRET, "max_tokens": 4, "model": "other-name", "seed": 5, "stream": True}
        assert seen.post("/v1/completions", {**body, "top_k": 3, "presence_penalty": 0.5}, HEADERS) == 200
        span, where = seen.span(), place(seen.server)
    told = known(span)
    assert span.name == "text_completion other-name"
    assert span.kind is SpanKind.SERVER
    assert span.context is not None
    assert span.parent is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
    assert span.context.trace_state.get("vendor") == "what-it-likes"
    assert told.pop("gen_ai.response.id").startswith("cmpl-")
    assert 0 < told.pop("gen_ai.response.time_to_first_chunk") <= (span.end_time - span.start_time) / 1e9  # type: ignore[operator]
    assert told == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "headrace",
        "gen_ai.request.model": "other-name",
        "gen_ai.request.max_tokens": 4,
        "gen_ai.request.temperature": 1.0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 3,
        "gen_ai.request.seed": 5,
        "gen_ai.request.presence_penalty": 0.5,
        "gen_ai.request.stream": True,
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": len(SECRET),
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "http.response.status_code": 200,
        **where,
    }
    assert [event.name for event in span.events] == ["headrace.first_token"]
    assert span.start_time < span.events[0].timestamp <= span.end_time  # type: ignore[operator]
    assert span.status.status_code is StatusCode.UNSET


def test_several_answers_and_a_tenant(script: Script) -> None:
    tenancy = Tenancy(Registry([tenant("a")]), UsageBook(None))
    with watched(script, tenancy=tenancy) as seen:
        body = {"messages": [{"role": "user", "content": SECRET}], "max_completion_tokens": 2, "n": 2}
        assert seen.post("/v1/chat/completions", body, {"x-api-key": "key-a"}) == 200
        span = seen.span()
    told = known(span)
    assert (span.name, span.parent) == ("chat tiny", None)
    assert (told["headrace.tenant"], told["gen_ai.request.choice.count"]) == ("a", 2)
    assert told["gen_ai.response.finish_reasons"] == ("length", "length")
    assert "gen_ai.request.seed" not in told  # which it did not ask for
    assert "gen_ai.response.time_to_first_chunk" not in told
    assert SECRET not in str(told)


@pytest.mark.parametrize(
    ("body", "headers", "status", "error"),
    [
        ({"prompt": SECRET, "max_tokens": SECRET}, {"x-api-key": "key-a"}, 400, "invalid_request_error"),
        ({"prompt": "x", "model": SECRET}, {"x-api-key": "key-a"}, 404, "model_not_found"),
        ({"prompt": "x"}, {"x-api-key": SECRET}, 401, "invalid_api_key"),
    ],
)
def test_what_is_refused_is_a_span_with_its_reason(
    script: Script, body: dict[str, Any], headers: dict[str, str], status: int, error: str
) -> None:
    tenancy = Tenancy(Registry([tenant("a")]), UsageBook(None))
    with watched(script, tenancy=tenancy) as seen:
        assert seen.post("/v1/completions", body, {**headers, **HEADERS}) == status
        span, where = seen.span(), place(seen.server)
    assert span.name == "text_completion"  # a client's words are no name
    assert span.status.status_code is StatusCode.ERROR
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == TRACE
    whose = {"headrace.tenant": "a"} if status != 401 else {}
    assert known(span) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "headrace",
        "http.response.status_code": status,
        "error.type": error,
        **where,
        **whose,
    }


def test_an_engine_that_fails_is_an_error_span(script: Script) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with running(lambda: scripted_llm(script, fail_steps={2})) as server:
        server.host.observers.append(SpanObserver(provider.get_tracer("test")))
        seen = Watched(server, exporter)
        assert seen.post("/v1/completions", {"prompt": "x", "max_tokens": 9}) == 500
        span = seen.span()
    assert span.status.status_code is StatusCode.ERROR
    told = known(span)
    assert (told["error.type"], told["http.response.status_code"]) == ("engine_error", 500)
    assert told["gen_ai.response.finish_reasons"] == ("error",)


def test_one_that_went_away_is_an_error_span_without_a_status(script: Script) -> None:
    with watched(held(script)) as seen:
        bare = seen.server.send_raw("/v1/completions", {"prompt": "x", "max_tokens": LONG})
        until(lambda: bool(seen.server.requests), "it does not begin")
        bare.close()
        told = known(seen.span())
    assert told["error.type"] == "abort"
    assert "http.response.status_code" not in told


def test_embeddings_have_spans_too(script: Script, tmp_path: Path) -> None:
    process = EmbeddingProcess(str(tiny_encoder.write_encoder(tmp_path)))
    with watched(script, settings=AppSettings(embeddings=Embeddings(process, "enc"))) as seen:
        assert seen.post("/v1/embeddings", {"input": ["cab", "sea b c"]}, HEADERS) == 200
        span, where = seen.span(), place(seen.server)
        assert seen.post("/v1/embeddings", {"input": ""}) == 400
        refused = seen.span()
    assert span.name == "embeddings enc"
    told = known(span)
    assert told.pop("gen_ai.usage.input_tokens") > 2
    assert told == {
        "gen_ai.operation.name": "embeddings",
        "gen_ai.provider.name": "headrace",
        "gen_ai.request.model": "enc",
        "gen_ai.request.encoding_formats": ("float",),
        "gen_ai.response.model": "enc",
        "http.response.status_code": 200,
        **where,
    }
    assert (known(refused)["error.type"], refused.status.status_code) == ("invalid_request_error", StatusCode.ERROR)


def test_what_makes_no_model_work_makes_no_span(script: Script) -> None:
    with watched(script) as seen:
        assert seen.post("/tokenize", {"prompt": "x"}) == 200
        assert seen.server.http.get("/v1/models").status_code == 200
        assert seen.post("/v1/completions", {"prompt": "x", "max_tokens": 1}) == 200
        assert seen.span().name == "text_completion tiny"  # the only one


def test_spans_reach_a_collector(script: Script) -> None:
    """Through the real exporter, to a collector of a few lines."""
    from http.server import BaseHTTPRequestHandler, HTTPServer

    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the library's name
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    collector = HTTPServer(("127.0.0.1", 0), Collector)
    serving = threading.Thread(target=collector.serve_forever, daemon=True)
    serving.start()
    try:
        with (
            spans.tracing(f"http://127.0.0.1:{collector.server_port}/v1/traces") as observer,
            running(lambda: scripted_llm(script)) as server,
        ):
            server.host.observers.append(observer)
            assert server.complete(SECRET, max_tokens=2).status_code == 200
        until(lambda: bool(bodies), "no span arrives")
    finally:
        collector.shutdown()
        collector.server_close()
    assert b"text_completion tiny" in bodies[0]
    assert SECRET.encode() not in b"".join(bodies)


def test_a_collector_that_is_gone_is_told_of_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    libraries = logging.Logger("a library")
    libraries.addHandler(spans.Sparing(lambda: now[0]))
    for moment in (100.0, 101.0, 159.0, 160.0, 161.0):
        now[0] = moment
        libraries.info("not worth a line")
        libraries.warning("at %d it is gone", moment)
    assert caplog.messages == [f"spans are not delivered: at {moment} it is gone" for moment in (100, 160)]


def test_the_end_does_not_wait_for_a_collector_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "FLUSH_S", 0.01)
    let_go, tried = threading.Event(), threading.Event()
    provider = SimpleNamespace(shutdown=lambda: (tried.set(), let_go.wait()))
    spans.flush(provider)  # for ever, if it waited
    assert tried.wait(DEADLINE_S)
    let_go.set()
