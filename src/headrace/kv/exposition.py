"""A store server's facts as Prometheus text on a port of this machine. Numbers only; no key, tenant or content."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from headrace.contract.errors import StoreError

HOST = "127.0.0.1"
PREFIX = "headrace_kvstore_"
GAUGES = frozenset(
    (
        *("capacity_bytes", "file_bytes", "value_bytes", "values", "segments", "tenants", "name_spaces", "leases"),
        *("held_by_engines", "directory_age_seconds"),
    )
)

Facts = Callable[[], Mapping[str, int | float | str]]


def exposition(facts: Mapping[str, int | float | str]) -> str:
    """Facts that are numbers, as metrics; what is not a gauge counts up."""
    lines = []
    for name, value in facts.items():
        if isinstance(value, int | float):
            kind, suffix = ("gauge", "") if name in GAUGES else ("counter", "_total")
            lines += [f"# TYPE {PREFIX}{name}{suffix} {kind}", f"{PREFIX}{name}{suffix} {value}"]
    return "\n".join(lines) + "\n"


@contextmanager
def exposed(facts: Facts, port: int | None) -> Iterator[int | None]:
    """Answers /metrics for the length of a ``with``; yields the port. No port: does nothing. Raises StoreError."""
    if port is None:
        yield None
        return

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            found = self.path == "/metrics"
            body = exposition(facts()).encode() if found else b"see /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing: a scrape is no event."""

    try:
        server = ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        raise StoreError(f"{HOST}:{port}", f"cannot be listened on: {error.strerror}") from error
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
