"""Opens ``http(s):`` and ``file:`` addresses at a byte offset. Every wait has a deadline; credentials stay
home.
"""

from __future__ import annotations

import base64
import os
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPMessage, HTTPResponse
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import Request, url2pathname

AGENT = "headrace"
CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


@dataclass(frozen=True, slots=True)
class Opened:
    """A stream of bytes that begins at ``offset``; ``total`` is the whole file's size, None when unknown."""

    stream: IO[bytes] | HTTPResponse
    offset: int
    total: int | None
    content_type: str = ""
    url: str = ""


@dataclass(frozen=True)
class Transport:
    """How to reach servers. ``timeout_s`` bounds each wait for the network, not a whole transfer.

    ``bearer`` maps a host to the token that it, and only it, is shown.
    """

    timeout_s: float = 30.0
    ca_file: str | None = None
    client_cert: str | None = None
    proxy: str | None = None
    trusted_hosts: frozenset[str] = frozenset()
    bearer: Mapping[str, str] = field(default_factory=dict)

    def open(self, url: str, *, offset: int = 0, accept: str = "*/*") -> Opened:
        """Raises urllib's and the socket's errors as they are; ``download.py`` gives them their meaning."""
        if urlsplit(url).scheme == "file":
            return _open_file(url, offset)
        address, headers = self._with_credentials(url)
        request = Request(address, headers={"User-Agent": AGENT, "Accept": accept, "Accept-Encoding": "identity"})
        if offset:
            request.add_header("Range", f"bytes={offset}-")
        for name, value in headers.items():
            request.add_unredirected_header(name, value)
        response = self._opener(address).open(request, timeout=self.timeout_s)
        return _describe(response)

    def _with_credentials(self, url: str) -> tuple[str, dict[str, str]]:
        """The address without its ``user:password@``, and the header that says the same."""
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            token = "Basic " + base64.b64encode(pair.encode()).decode()
            return urlunsplit(parts._replace(netloc=host)), {"Authorization": token}
        return url, {"Authorization": f"Bearer {self.bearer[host]}"} if host in self.bearer else {}

    def _opener(self, url: str) -> urllib.request.OpenerDirector:
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.client_cert:
            context.load_cert_chain(self.client_cert)
        parts = urlsplit(url)
        if {parts.hostname, parts.netloc} & self.trusted_hosts:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        proxies = {"http": self.proxy, "https": self.proxy} if self.proxy else None
        return urllib.request.build_opener(
            urllib.request.ProxyHandler(proxies), urllib.request.HTTPSHandler(context=context), _Redirects()
        )


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to other web addresses, never from a secured to an open one."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if new.scheme not in ("http", "https") or (old.scheme, new.scheme) == ("https", "http"):
            raise urllib.error.URLError(f"refused the redirect from {old.scheme} to {new.scheme}")
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request and old.netloc == new.netloc and req.has_header("Authorization"):
            request.add_unredirected_header("Authorization", str(req.get_header("Authorization")))
        return request


def _describe(response: Any) -> Opened:
    """Where the answer's bytes begin: servers may ignore the range and start over."""
    headers, url = response.headers, response.url
    kind = headers.get_content_type()
    place = CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
    if response.status == 206 and place:
        total = None if place[2] == "*" else int(place[2])
        return Opened(response, int(place[1]), total, kind, url)
    length = headers.get("Content-Length")
    return Opened(response, 0, int(length) if length and length.isdecimal() else None, kind, url)


def _open_file(url: str, offset: int) -> Opened:
    path = local_path(url)
    if path.is_dir():
        path = path / "index.html"
    stream = path.open("rb")
    stream.seek(offset)
    kind = "text/html" if path.suffix == ".html" else ""
    return Opened(stream, offset, os.fstat(stream.fileno()).st_size, kind, path.as_uri())


def local_path(url: str) -> Path:
    """The path that a ``file:`` address names."""
    return Path(url2pathname(urlsplit(url).path))
