"""``headrace serve`` refuses what could never work before it loads anything, and says what would."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.api.embedder import encoder_folder
from headrace.api.http.server import ServerSettings, listen
from headrace.api.http.spans import traces_url
from headrace.api.launch import load_parts
from headrace.cli.serve import check_tls, check_words
from headrace.config import resolve
from headrace.contract.errors import ConfigError, ModelError, UnknownModel
from headrace.contract.extras import how_to_get, missing
from headrace.kv.place import check_place


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    file = tmp_path / "cert.pem"
    file.write_text("{}")
    with pytest.raises(ConfigError, match=r"tls_cert: .*cert\.pem"):
        check_tls(file, file)
    with pytest.raises(ConfigError, match="go together"):
        check_tls(file, None)


@pytest.mark.parametrize("origin", ["foo", "https://", "https://a/b", ""])
def test_an_origin_that_no_browser_has_is_refused(origin: str) -> None:
    check_words(["a"], ["*", "https://example.org:8443", "http://localhost"])
    with pytest.raises(ConfigError, match="cors_origin"):
        check_words([], [origin])


@pytest.mark.parametrize(
    "endpoint", ["foo", "localhost:4318", "grpc://h:4317", "http://", "http://h:port", "http://[h", ""]
)
def test_a_collector_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="otlp_endpoint: must be a URL such as"):
        traces_url(endpoint)


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://h:4318", "http://h:4318/v1/traces"),
        ("https://h/", "https://h/v1/traces"),
        ("http://h:4318?key=1", "http://h:4318/v1/traces?key=1"),
        ("http://h:4318/v1/traces", "http://h:4318/v1/traces"),
        ("http://h/collect/", "http://h/collect/"),
    ],
)
def test_a_collectors_address_alone_means_its_path_for_traces(endpoint: str, url: str) -> None:
    assert traces_url(endpoint) == url


@pytest.mark.parametrize("model", ["nosuch", "smollm2-135m-instruct", "v41-mini"])
def test_what_is_no_encoder_is_told_one(model: str) -> None:
    with pytest.raises(
        (ModelError, UnknownModel), match=r"encoder\. One that is: pypi:\S+==\S+\. Other forms: a directory"
    ):
        encoder_folder(model, offline=True)


def test_an_address_of_another_machine_is_no_matter_of_the_port() -> None:
    with pytest.raises(ConfigError, match=r"^host: cannot listen on 192\.0\.2\.1 port 0: (?!.*--port)"):
        listen(ServerSettings("192.0.2.1", 0))  # a documentation's address, nobody's


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="served_model_name"):
        check_words(["a", " "], [])


@pytest.mark.parametrize("place", ["ftp://x", "redis://h:1", "S3://bucket", "s3//bucket", "tcp//h", "tpc:/x", "s3:b"])
def test_a_store_of_an_unknown_kind_makes_no_folder(place: str) -> None:
    with pytest.raises(ConfigError, match="kv_store"):
        check_place(place)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("tcp://127.0.0.1", "tcp://HOST:PORT"),
        ("tcp://:7420", "tcp://HOST:PORT"),
        ("mooncake://h:0", "mooncake://HOST:PORT"),
        ("s3://", "names no bucket"),
        ("ipc://", "names no socket"),
        ("striped:", "names no file"),
    ],
)
def test_an_address_that_cannot_work_is_refused_in_plain_words(place: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_place(place)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "kv"):
        with pytest.raises(ConfigError, match="is a file"):
            check_place(str(place))


def test_a_store_that_cannot_work_is_refused_before_the_model_is_looked_for() -> None:
    with pytest.raises(ConfigError, match="kv_store"):
        load_parts(resolve({"model": "no/such/model", "kv_store": "tcp://127.0.0.1"}))


@pytest.mark.parametrize("place", ["/var//kv", "kv", "~/kv", "tcp://h:1", "s3://b/p", "striped:f", "mooncake://h:1"])
def test_a_store_that_can_be_one_passes(place: str) -> None:
    check_place(place)


def test_a_missing_package_is_found_at_any_depth() -> None:
    assert missing("json", "os.path") == []
    assert missing("json.nothing.here", "no_such_package.at.all") == ["json.nothing.here", "no_such_package.at.all"]
    assert "[otel]" in how_to_get("otel")
