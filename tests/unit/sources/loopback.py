"""A web server on the loopback address that misbehaves on request: the tests' index and hub."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Site:
    """What the server serves and how it fails. ``seen`` logs ``(path, Range header, Authorization
    header)``.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    statuses: dict[str, list[int]] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    die_after: dict[str, list[int]] = field(default_factory=dict)
    hang_after: dict[str, int] = field(default_factory=dict)
    drip: set[str] = field(default_factory=set)
    ranges: bool = True
    lengths: bool = True
    seen: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    url: str = ""
    stopping: threading.Event = field(default_factory=threading.Event)

    def ranges_of(self, path: str) -> list[str | None]:
        return [asked for seen, asked, _ in self.seen if seen == path]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        site, path = self.site, self.path.partition("?")[0]
        self.close_connection = True
        site.seen.append((path, self.headers.get("Range"), self.headers.get("Authorization")))
        if site.statuses.get(path):
            return self.empty(site.statuses[path].pop(0))
        if path in site.redirects:
            return self.empty(302, Location=site.redirects[path])
        if path not in site.files:
            return self.empty(404)
        return self.body(path, site.files[path])

    def empty(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": "0", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def body(self, path: str, data: bytes) -> None:
        start = self.start_of(data)
        if start is None:
            return self.empty(416, Content_Range=f"bytes */{len(data)}")
        self.send_response(206 if start else 200)
        self.send_header("Content-Type", self.site.types.get(path, "application/octet-stream"))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        if self.site.lengths:
            self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        return self.send(path, data[start:])

    def start_of(self, data: bytes) -> int | None:
        asked = self.headers.get("Range")
        if not asked or not self.site.ranges:
            return 0
        start = int(asked.removeprefix("bytes=").removesuffix("-"))
        return start if start < len(data) else None

    def send(self, path: str, data: bytes) -> None:
        site = self.site
        if site.die_after.get(path):
            data = data[: site.die_after[path].pop(0)]
        if path in site.hang_after:
            self.write(data[: site.hang_after[path]])
            site.stopping.wait(20)
        elif path in site.drip:
            for byte in data:
                if site.stopping.is_set():
                    return
                self.write(bytes([byte]))
                time.sleep(0.02)
        else:
            self.write(data)

    def write(self, data: bytes) -> None:
        try:
            self.wfile.write(data)
            self.wfile.flush()
        except OSError:  # the client gave up, as some tests want it to
            self.site.stopping.wait(0)


@contextmanager
def serving() -> Iterator[Site]:
    site = Site()
    handler = type("Handler", (_Handler,), {"site": site})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield site
    finally:
        site.stopping.set()
        server.shutdown()
        server.server_close()


def wheel(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def add_hub_model(site: Site, name: str, files: dict[str, bytes], revision: str = "main") -> dict[str, Any]:
    """Serves a model under the hub's paths; large files are listed with SHA-256, small ones with git's
    SHA-1.
    """
    siblings: list[dict[str, Any]] = []
    for file, data in files.items():
        item: dict[str, Any] = {"rfilename": file, "size": len(data), "blobId": git_blob(data)}
        if file.endswith((".safetensors", ".gguf")):
            item["lfs"] = {"sha256": sha256(data), "size": len(data), "pointerSize": 1}
        siblings.append(item)
        site.files[f"/{name}/resolve/{COMMIT}/{file}"] = data
    listing = {"sha": COMMIT, "siblings": siblings}
    site.files[f"/api/models/{name}/revision/{revision}"] = json.dumps(listing).encode()
    return listing
