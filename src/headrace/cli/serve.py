"""``headrace serve``: an HTTP server that speaks OpenAI's and Anthropic's protocols, the engine in its own process."""

from __future__ import annotations

import logging
import os
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.config import EngineConfig, SchedulerConfig
from headrace.contract.errors import ConfigError
from headrace.contract.extras import how_to_get, missing
from headrace.contract.sizes import parse_size

from .console import print_json, to_stderr
from .flags import EngineFlags, ReportFlags, flagged
from .interrupts import Terminated, import_engine
from .loading import check_model_names
from .serve_roles import RoleFlags, serve_role, starter

if TYPE_CHECKING:
    from headrace.api.http.app import AppSettings
    from headrace.api.http.arrivals import Observer
    from headrace.api.http.embeddings import Embeddings
    from headrace.api.http.host import EngineHost
    from headrace.api.http.server import ServerSettings
    from headrace.api.tenants.tenancy import Tenancy

Host = Annotated[str, typer.Option(help="Address to listen on; the default is reachable from this machine only.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one and says which.")]
Names = Annotated[
    list[str] | None,
    typer.Option("--served-model-name", help="What clients call the model, in place of its own name; repeatable."),
]
MaxOpen = Annotated[int, typer.Option(min=1, help="Sequences accepted and not yet answered; more get 429.")]
MaxBody = Annotated[str, typer.Option(help="Largest request body.")]
KeepAlive = Annotated[float, typer.Option(min=0.05, help="Seconds of silence before a stream gets a comment.")]
Drain = Annotated[float, typer.Option(min=0, help="Seconds open requests may take to finish when asked to stop.")]
Cors = Annotated[list[str] | None, typer.Option("--cors-origin", help="Origin whose pages may call; repeatable.")]
Cert = Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="TLS certificate (PEM).")]
Key = Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="TLS key (PEM).")]
ToolParser = Annotated[str, typer.Option(help="How answers spell tool calls: auto, none, hermes, llama3.")]
ReasoningParser = Annotated[str, typer.Option(help="How answers mark thoughts: auto, none, think.")]
CodecName = Annotated[str, typer.Option("--codec", help="How conversations are written: template, recipe.")]
Tenants = Annotated[Path | None, typer.Option(help="The tenants' file; without it nobody needs a key.")]
UsageDb = Annotated[Path | None, typer.Option(help="Where usage is kept; by default beside the tenants' file.")]
LogRequests = Annotated[bool, typer.Option("--log-requests", help="A line of JSON per request on stderr; no content.")]
Otlp = Annotated[str | None, typer.Option(help="OTLP/HTTP collector for spans, such as http://localhost:4318.")]
Profile = Annotated[bool, typer.Option("--profile", help="Serve POST /debug/profile.")]
Peak = Annotated[float, typer.Option(min=0, help="Peak GFLOP/s of this machine, for the MFU of dashboards.")]
EncoderModel = Annotated[str | None, typer.Option(help="An encoder to serve at /v1/embeddings beside the model.")]
Vllm = Annotated[bool, typer.Option("--vllm-metrics", help="Export metrics under vLLM's names as well.")]


SMALLEST_BODY = 1024
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")


@flagged
def serve(
    engine: EngineFlags,
    report: ReportFlags,
    roles: RoleFlags,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    served_model_name: Names = None,
    max_open: MaxOpen = 1024,
    max_body: MaxBody = "16MiB",
    keep_alive: KeepAlive = 10.0,
    drain: Drain = 30.0,
    cors_origin: Cors = None,
    tls_cert: Cert = None,
    tls_key: Key = None,
    vllm_metrics: Vllm = False,
    tool_parser: ToolParser = "auto",
    reasoning_parser: ReasoningParser = "auto",
    codec: CodecName = "template",
    tenants: Tenants = None,
    usage_db: UsageDb = None,
    log_requests: LogRequests = False,
    otlp_endpoint: Otlp = None,
    profile: Profile = False,
    peak_gflops: Peak = 0.0,
    embedding_model: EncoderModel = None,
) -> None:
    """Serve a model over HTTP: /v1/chat/completions, /v1/completions, /v1/models, /metrics and more."""
    check_extra()
    config = engine.resolve()
    check_model_names(config)
    roles.check()
    import_engine()
    if roles.role is not None:
        serve_role(config, roles, report)
        return
    from headrace.api.http.app import AppSettings
    from headrace.api.http.host import HostLimits
    from headrace.api.http.server import ServerSettings
    from headrace.api.http.spans import traces_url
    from headrace.api.text.answer_forms import ParserChoice

    parsers = ParserChoice(tool_parser, reasoning_parser)
    parsers.check()
    check_codec(codec)
    check_tls(tls_cert, tls_key)
    check_words(served_model_name or [], cors_origin or [])
    if otlp_endpoint is not None:
        traces_url(otlp_endpoint)  # refused before anything is loaded
    if usage_db is not None and tenants is None:
        raise ConfigError("usage_db", "is of use only with --tenants")
    limits = HostLimits(
        max_open=min(max_open, config.scheduler.max_waiting),
        keep_alive_s=keep_alive,
        max_body_bytes=_at_least("max_body", parse_size("max_body", max_body), SMALLEST_BODY),
        peak_flops=peak_gflops * 1e9,
    )
    cert, key = (None if path is None else str(path) for path in (tls_cert, tls_key))
    settings = ServerSettings(host, port, cert, key, drain)
    names = served_model_name or [config.model.model]
    tenancy = None
    if tenants is not None:
        tenancy = _open_tenancy(tenants, usage_db or tenants.with_suffix(".usage.sqlite"), config.scheduler)
        config = _fair(config)
    app = AppSettings(cors_origin or [], vllm_metrics, profile, _embeddings(embedding_model, config), log_requests)
    if log_requests:
        _show_request_log()
    give_up = threading.Event()
    start = starter(config, roles, give_up)

    def open_host(observers: list[Observer]) -> EngineHost:
        from headrace.api.http.host import EngineHost

        try:
            made = EngineHost(start, names, limits, parsers, tenancy, codec, give_up)
        except BaseException:  # asked to stop, too: threads that still wait for engines must not keep the program
            give_up.set()
            raise
        made.observers += observers
        return made

    with _observers(otlp_endpoint) as observers:
        _run(partial(open_host, observers), settings, app, report)


def check_extra() -> None:
    """The server's packages are an extra: says how to get them."""
    if absent := missing("fastapi", "uvicorn", "prometheus_client"):
        raise ConfigError("serve", f"needs {', '.join(absent)}: `make serve`, or {how_to_get('serve')}")


def check_tls(cert: Path | None, key: Path | None) -> None:
    """Raises ConfigError unless both or none are given, and they are a certificate and its key."""
    if (cert is None) != (key is None):
        raise ConfigError("tls_key", "a certificate and its key go together")
    if cert is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
        except (ssl.SSLError, OSError) as error:
            raise ConfigError("tls_cert", f"{cert} and {key} are no certificate and its key in PEM: {error}") from error


def check_words(names: list[str], origins: list[str]) -> None:
    """Raises ConfigError for a name that no client could send, and for an origin that no browser has."""
    if not all(name.strip() for name in names):
        raise ConfigError("served_model_name", "must not be empty")
    for origin in origins:
        if origin != "*" and not ORIGIN.fullmatch(origin):
            raise ConfigError("cors_origin", f"must be * or like https://example.org:8443, got {origin!r}")


def _at_least(field: str, size: int, least: int) -> int:
    if size < least:
        raise ConfigError(field, f"must be at least {least} bytes, got {size}")
    return size


def check_codec(name: str) -> None:
    """Raises ConfigError for an unknown one, and where its extra is missing."""
    from headrace.api.protocol.codec import CODECS
    from headrace.api.protocol.recipe import load_recipe

    if name not in CODECS:
        raise ConfigError("codec", f"must be one of {', '.join(CODECS)}, got {name!r}")
    if name == "recipe":
        load_recipe()


def _run(open_host: Callable[[], EngineHost], settings: ServerSettings, app: AppSettings, report: ReportFlags) -> None:
    """The address is taken before the model is loaded. SIGTERM while it is loaded ends in order: nothing is open."""
    from headrace.api.http.app import build_app
    from headrace.api.http.server import Server, address, listen, run

    bound = listen(settings)
    try:
        host = open_host()
    except Terminated:
        to_stderr("asked to stop before the engine was there")
        return
    if report.verbose:
        to_stderr(f"context {host.llm.max_model_len} tokens; vocabulary {host.llm.vocab_size}")
    ready = partial(_tell_ready, host.names[0], address(settings, bound), bound.getsockname()[1], report.as_json)
    run(Server(build_app(host, app), host, settings, ready, to_stderr), host, bound)


def _tell_ready(model: str, url: str, port: int, as_json: bool) -> None:
    """From here on connections are answered."""
    if as_json:
        print_json({"url": url, "port": port, "model": model, "pid": os.getpid()})
    else:
        to_stderr(f"serving {model} on {url}")


def _embeddings(model: str | None, config: EngineConfig) -> Embeddings | None:
    if model is None:
        return None
    from headrace.api.embedding_process import EmbeddingProcess
    from headrace.api.http.embeddings import Embeddings

    process = EmbeddingProcess(model, offline=config.model.offline)
    process.load()
    return Embeddings(process, model)


def _fair(config: EngineConfig) -> EngineConfig:
    """The engine takes turns as the queue before it does, and no prompt fills a whole step: five eighths are enough for
    most prompts to need no second one, and leave room for another's."""
    limits = config.scheduler
    most = limits.long_prefill_threshold or max(1, limits.token_budget * 5 // 8)
    return replace(config, scheduler=replace(limits, priority=True, long_prefill_threshold=most))


def _open_tenancy(path: Path, usage_db: Path, engine: SchedulerConfig) -> Tenancy:
    """Sequences that the engine can run at once, prompts for one step: whoever comes next waits for no more."""
    from headrace.api.tenants.registry import Registry
    from headrace.api.tenants.tenancy import Tenancy, TenancyLimits
    from headrace.api.tenants.usage import UsageBook

    known = Registry.load(path)
    if not known.tenants:
        words = f"{path} names no tenant, so nobody could get in; `headrace tenants add NAME --file {path}` adds one"
        raise ConfigError("tenants", words)
    return Tenancy(known, UsageBook(usage_db), TenancyLimits(engine.max_seqs, engine.token_budget))


def _show_request_log() -> None:
    from headrace.api.http.request_log import log

    log.setLevel(logging.INFO)
    log.addHandler(logging.StreamHandler())
    log.propagate = False


@contextmanager
def _observers(otlp_endpoint: str | None) -> Iterator[list[Observer]]:
    from headrace.api.http.spans import tracing

    if otlp_endpoint is None:
        yield []
        return
    with tracing(otlp_endpoint) as observer:
        yield [observer]
