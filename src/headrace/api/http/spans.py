"""Requests as OpenTelemetry spans, by the GenAI conventions. Needs the ``otel`` extra; without it nothing here loads.

A span is made when its request is over, with the times it had, so tracing costs nothing on the way.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from headrace.contract.errors import ConfigError
from headrace.contract.extras import how_to_get, missing

from .arrivals import Arrival, Finished

FLUSH_S = 2.0  # at the end, for spans that were not sent yet
PERIOD_S = 60.0  # the least time between two lines about spans that cannot be sent
MOST_CHARACTERS = 300
TALKERS = ("opentelemetry", "urllib3")  # loggers: each tells every attempt of every batch

log = logging.getLogger("headrace.serve")


class Sparing(logging.Handler):
    """What the exporter's libraries have to complain about, as a line of ours a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._clock = clock
        self._next_s = clock()

    def emit(self, record: logging.LogRecord) -> None:
        if (now := self._clock()) >= self._next_s:
            self._next_s = now + PERIOD_S
            log.warning("spans are not delivered: %s", record.getMessage().partition("\n")[0][:MOST_CHARACTERS])


def traces_url(endpoint: str) -> str:
    """Where spans go. A collector's address without a path means ``/v1/traces`` there, as in
    ``OTEL_EXPORTER_OTLP_ENDPOINT``; with one it is taken as it is. Raises ConfigError for what is no HTTP URL."""
    try:
        parts = urlsplit(endpoint)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        sound = False
    if not sound:
        raise ConfigError("otlp_endpoint", f"must be a URL such as http://localhost:4318, got {endpoint!r}")
    return parts._replace(path="/v1/traces").geturl() if parts.path in ("", "/") else endpoint


@contextmanager
def tracing(endpoint: str) -> Iterator[SpanObserver]:
    """An observer that sends to an OTLP/HTTP collector; at the end it sends the rest, briefly.
    ``endpoint``: as ``traces_url`` takes it. Raises ConfigError without the extra."""
    provider, sparing = _provider(traces_url(endpoint)), Sparing()
    for name in TALKERS:
        logging.getLogger(name).propagate = False
        logging.getLogger(name).addHandler(sparing)
    try:
        yield SpanObserver(provider.get_tracer("headrace"))
    finally:
        flush(provider)


def flush(provider: Any) -> None:
    """A collector that is gone would be waited for far longer than spans are worth: who tries is left behind."""
    last = threading.Thread(target=provider.shutdown, name="headrace-last-spans", daemon=True)
    last.start()
    last.join(FLUSH_S)


def _provider(endpoint: str) -> Any:
    if missing("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
        raise ConfigError("otlp_endpoint", f"needs the otel extra: {how_to_get('otel')}")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": "headrace"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return provider


class SpanObserver:
    """Called once per request. ``tracer``: OpenTelemetry's."""

    def __init__(self, tracer: Any) -> None:
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = tracer
        self._kind = SpanKind.SERVER
        self._propagator = TraceContextTextMapPropagator()

    def __call__(self, finished: Finished, arrival: Arrival) -> None:
        from opentelemetry.trace import Status, StatusCode

        span = self._tracer.start_span(
            f"{finished.operation} {arrival.model}" if arrival.model else finished.operation,
            context=self._propagator.extract(arrival.trace),
            kind=self._kind,
            start_time=finished.started_ns,
            attributes=attributes(finished, arrival),
        )
        if finished.first_ns is not None:
            span.add_event("headrace.first_token", timestamp=finished.first_ns)
        if finished.error is not None:
            span.set_attribute("error.type", finished.error)
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_time=finished.ended_ns)


def attributes(finished: Finished, arrival: Arrival) -> dict[str, Any]:
    """Names are those of the semantic conventions for generative AI and for HTTP; ``headrace.*`` is our own. What is
    not known is left out: a refused request has no usage."""
    host, port = arrival.server or (None, None)
    told: dict[str, Any] = {
        "gen_ai.operation.name": finished.operation,
        "gen_ai.provider.name": "headrace",
        "gen_ai.request.model": arrival.model,
        **arrival.wishes,
        "gen_ai.response.model": finished.model if finished.prompt_tokens is not None else None,
        "gen_ai.response.id": finished.request_id or None,
        "gen_ai.response.finish_reasons": finished.finish_reasons or None,
        "gen_ai.usage.input_tokens": finished.prompt_tokens,
        "gen_ai.usage.output_tokens": finished.generated_tokens,
        "gen_ai.usage.cache_read.input_tokens": finished.cached_tokens,
        "server.address": host,
        "server.port": port,
        "http.response.status_code": arrival.status,
        "headrace.tenant": finished.tenant,
    }
    if finished.first_ns is not None and arrival.wishes.get("gen_ai.request.stream"):
        told["gen_ai.response.time_to_first_chunk"] = (finished.first_ns - finished.started_ns) / 1e9
    return {name: value for name, value in told.items() if value is not None}
