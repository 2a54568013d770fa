"""``headrace kvstore``: the KV store as a service for several engines, and what such a server says of itself."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from headrace import env
from headrace.config_checks import MIN_STORE_BYTES
from headrace.contract.errors import ConfigError
from headrace.contract.sizes import parse_size

from .console import bytes_text, print_json, print_table, to_stderr
from .flags import ReportFlags, flagged
from .guard import GuardedCommand
from .kv_store import said

ADDRESS = "tcp://127.0.0.1:7420"
Secret = Annotated[Path | None, typer.Option(help="File with the shared secret (mode 0600, 16 bytes or more).")]


def kvstore_app() -> typer.Typer:
    """The group of commands about the store's service."""
    app = typer.Typer(no_args_is_help=True, help="The KV store as a service for several engines.")
    app.callback()(_group)
    commands: dict[str, Callable[..., None]] = {"serve": serve_command, "stat": stat_command}
    for name, command in commands.items():
        app.command(name, cls=GuardedCommand)(command)
    return app


def _group() -> None:
    """The KV store as a service for several engines."""


@flagged
def serve_command(
    report: ReportFlags,
    listen: Annotated[
        str, typer.Option(help="Where to listen, tcp://HOST:PORT or ipc://PATH; other machines only with --secret.")
    ] = "tcp://127.0.0.1:7420",
    folder: Annotated[Path | None, typer.Option(help="Default: kvstore in the cache folder.")] = None,
    size: Annotated[str | None, typer.Option(help="Most the folder may take, such as 50GiB.")] = None,
    secret: Secret = None,
    tenant_quota: Annotated[str | None, typer.Option(help="Most that one tenant's values may take.")] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Answer /metrics (Prometheus) on this port of 127.0.0.1.")
    ] = None,
) -> None:
    """Serve a store until interrupted. Engines use it with --kv-store ADDRESS."""
    from headrace.kv.exposition import exposed
    from headrace.kv.local import LocalStore
    from headrace.kv.place import check_listening, settle_capacity
    from headrace.kv.secret import read_secret
    from headrace.kv.server import StoreServer

    key = None if secret is None else read_secret(secret)
    check_listening(listen)
    place = folder or env.cache_dir() / "kvstore"
    capacity = settle_capacity(place, None if size is None else _size("size", size))
    quota = None if tenant_quota is None else _size("tenant_quota", tenant_quota)
    if quota is not None and quota > capacity:
        raise ConfigError("tenant_quota", f"{tenant_quota} is more than the store may take ({bytes_text(capacity)})")
    store = LocalStore(place, capacity, tenant_quota_bytes=quota)
    try:
        server = StoreServer(store, listen, secret=key)
    except BaseException:
        store.close()
        raise
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: server.stop())
    with closing(server), exposed(server.facts, metrics_port):
        if report.as_json:
            print_json({"address": server.address, "folder": str(place), "capacity_bytes": capacity})
        else:
            to_stderr(f"serving {place} on {server.address}")
        server.run()


def _size(field: str, text: str) -> int:
    """Bytes, enough for a store to work in. Raises ConfigError."""
    size = parse_size(field, text)
    if size < MIN_STORE_BYTES:
        raise ConfigError(field, f"must be at least {bytes_text(MIN_STORE_BYTES)}, got {text!r}")
    return size


@flagged
def stat_command(
    report: ReportFlags,
    address: Annotated[
        str, typer.Argument(help="Where the server listens, tcp://HOST:PORT or ipc://PATH.")
    ] = "tcp://127.0.0.1:7420",
    secret: Secret = None,
) -> None:
    """What a server holds and has done."""
    from headrace.kv.client import RemoteStore
    from headrace.kv.place import check_address
    from headrace.kv.secret import read_secret

    check_address(address)
    store = RemoteStore(address, secret=None if secret is None else read_secret(secret))
    try:
        facts = store.facts()
    finally:
        store.close()
    if report.as_json:
        print_json(facts)
    else:
        print_table(("what", "value"), [[name.replace("_", " "), said(name, value)] for name, value in facts.items()])
