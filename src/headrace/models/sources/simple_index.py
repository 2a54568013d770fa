"""Finds a wheel by name and version in simple indexes (HTML or JSON) and in find-links places.

Formats: the "simple repository API" of Python packaging, version 1, in both its forms.
"""

from __future__ import annotations

import json
import re
import time
import urllib.error
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from headrace.contract.errors import PullError

from .download import PASSING, NetworkErrors
from .files import Checksum
from .pip_config import PipConfig
from .transport import Opened, Transport, local_path

JSON_TYPE = "application/vnd.pypi.simple.v1+json"
ACCEPT = f"{JSON_TYPE}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
MAX_PAGE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel that some page links to. ``checksum`` and ``size`` where the page tells them."""

    filename: str
    url: str
    checksum: Checksum | None = None
    size: int | None = None


def find_wheel(config: PipConfig, package: str, version: str) -> Wheel:
    """The first wheel of exactly this version. Raises PullError listing what was asked and what it
    answered.
    """
    tried = []
    for page in [*config.find_links, *(f"{index}/{_normal(package)}/" for index in config.indexes)]:
        try:
            links = _patiently(config.transport, page)
        except OSError as error:
            tried.append(f"{_shown(page)} ({error})")
            continue
        wheels = [link for link in links if _is_version(link.filename, package, version)]
        if wheels:
            return max(wheels, key=lambda wheel: wheel.filename.endswith("-py3-none-any.whl"))
        tried.append(f"{_shown(page)} (no wheel of that version)")
    raise PullError(f"pypi:{package}=={version}", f"not found; asked {'; '.join(tried) or 'no index at all'}")


def _patiently(transport: Transport, page: str, attempts: int = 3) -> list[Wheel]:
    """The links of a page; asks again when the network failed, but not when the server said no."""
    for attempt in range(1, attempts + 1):
        try:
            return list(_links(transport, page))
        except NetworkErrors as error:
            final = isinstance(error, urllib.error.HTTPError) and error.code not in PASSING
            if final or attempt == attempts:
                raise urllib.error.URLError(str(error)) from error
            time.sleep(0.1 * 2**attempt)
    raise AssertionError("unreachable")


def _links(transport: Transport, page: str) -> Iterable[Wheel]:
    folder = _local(page)
    if folder and folder.is_dir() and not (folder / "index.html").exists():
        return [Wheel(path.name, path.absolute().as_uri()) for path in sorted(folder.glob("*.whl"))]
    if folder and folder.suffix == ".whl":
        return [Wheel(folder.name, folder.absolute().as_uri())]
    opened = transport.open(folder.absolute().as_uri() if folder else page, accept=ACCEPT)
    with opened.stream:
        return list(_read(opened))


def _local(page: str) -> Path | None:
    scheme = urlsplit(page).scheme
    if scheme == "file":
        return local_path(page)
    return None if scheme in ("http", "https") else Path(page).expanduser()


def _read(opened: Opened) -> Iterator[Wheel]:
    text = opened.stream.read(MAX_PAGE_BYTES).decode("utf-8", "replace")
    if opened.content_type == JSON_TYPE:
        return _from_json(text, opened.url)
    parser = _Anchors()
    parser.feed(text)
    base = urljoin(opened.url, parser.base)
    return (_from_link(urljoin(base, link)) for link in parser.links)


def _from_json(text: str, base: str) -> Iterator[Wheel]:
    try:
        files = json.loads(text)["files"]
        for file in files:
            digest = file.get("hashes", {}).get("sha256")
            checksum = Checksum("sha256", digest) if digest else None
            yield Wheel(file["filename"], urljoin(base, file["url"]), checksum, file.get("size"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise urllib.error.URLError(f"{base} is not a simple index: {error!r}") from error


def _from_link(url: str) -> Wheel:
    address, _, fragment = url.partition("#")
    digest = re.search(r"sha256=([0-9a-f]{64})", fragment)
    name = unquote(urlsplit(address).path.rpartition("/")[2])
    return Wheel(name, address, Checksum("sha256", digest[1]) if digest else None)


class _Anchors(HTMLParser):
    """Collects the targets of a page's links."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.base = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        target = dict(attrs).get("href")
        if tag == "a" and target:
            self.links.append(target)
        elif tag == "base" and target:
            self.base = target


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_version(filename: str, package: str, version: str) -> bool:
    parts = filename.split("-")
    return filename.endswith(".whl") and _normal(parts[0]) == _normal(package) and parts[1:2] == [version]


def _shown(page: str) -> str:
    """A page's address without the password it may hold."""
    parts = urlsplit(page)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
