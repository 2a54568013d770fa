from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from loopback import COMMIT, Site, add_hub_model

from headrace.contract.errors import ModelError, PullError
from headrace.models.encoders import read_pooling
from headrace.models.sources import list_models, resolve_model

SHARDS = {
    "model-00001-of-00002.safetensors": os.urandom(50_000),
    "model-00002-of-00002.safetensors": b"second",
}
INDEX = json.dumps({"weight_map": {f"t{i}": name for i, name in enumerate([*SHARDS, *SHARDS])}}).encode()
SHARDED = {
    "config.json": b"{}",
    "tokenizer.json": b'{"t": 1}',
    "README.md": b"not fetched",
    "model.safetensors.index.json": INDEX,
    "original/model.safetensors": b"not fetched",
    **SHARDS,
}


@pytest.fixture(autouse=True)
def endpoint(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", site.url + "/")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def fetched(site: Site) -> set[str]:
    return {path.rpartition("/")[2] for path, _, _ in site.seen if "/resolve/" in path}


def test_a_sharded_model(site: Site) -> None:
    add_hub_model(site, "org/name", SHARDED)
    progress: list[tuple[int, int]] = []
    source = resolve_model("hf:org/name", progress=lambda *at: progress.append(at))
    assert names(source.path) == {"config.json", "tokenizer.json", "model.safetensors.index.json", *SHARDS}
    assert all((source.path / name).read_bytes() == data for name, data in SHARDS.items())
    assert source.tokenizer_path == source.path
    assert source.path.name == COMMIT
    assert progress[-1][0] == progress[-1][1]
    listed = [model for model in list_models() if model.name.startswith("hf:")]
    assert [model.name for model in listed] == [f"hf:org/name@{COMMIT}"]


def test_a_model_in_one_file(site: Site) -> None:
    add_hub_model(site, "org/name", {"config.json": b"{}", "model.safetensors": b"w", "other.safetensors": b"o"})
    assert names(resolve_model("hf:org/name").path) == {"config.json", "model.safetensors"}


def test_an_encoder_comes_with_what_names_its_pooling(site: Site) -> None:
    says = {"modules.json": b"[]", "1_Pooling/config.json": b'{"pooling_mode_cls_token": true}'}
    add_hub_model(site, "org/name", {"config.json": b"{}", "model.safetensors": b"w", **says})
    folder = resolve_model("hf:org/name").path
    assert all((folder / name).read_bytes() == data for name, data in says.items())
    with pytest.raises(ModelError, match="pooling_mode_cls_token"):
        read_pooling(folder)


def test_a_gguf_model(site: Site) -> None:
    add_hub_model(site, "org/name", {"sub/m.gguf": b"GGUF", "README.md": b""})
    source = resolve_model("hf:org/name")
    assert source.path.read_bytes() == b"GGUF"
    assert resolve_model("hf:org/name", offline=True) == source


def test_one_of_several_gguf_files(site: Site) -> None:
    add_hub_model(site, "org/name", {"a.gguf": b"A", "b.gguf": b"B"})
    with pytest.raises(PullError, match=r"hf:org/name/a\.gguf, hf:org/name/b\.gguf"):
        resolve_model("hf:org/name")
    assert resolve_model("hf:org/name/b.gguf").path.read_bytes() == b"B"
    with pytest.raises(PullError, match="offline"):
        resolve_model("hf:org/name/a.gguf", offline=True)


def test_a_revision(site: Site) -> None:
    add_hub_model(site, "org/name", {"m.gguf": b"GGUF"}, revision="v1.0")
    assert resolve_model("hf:org/name@v1.0").path.read_bytes() == b"GGUF"
    with pytest.raises(PullError, match="404"):
        resolve_model("hf:org/name")


def test_what_is_there_is_not_fetched_again(site: Site) -> None:
    add_hub_model(site, "org/name", SHARDED)
    first = resolve_model("hf:org/name")
    site.seen.clear()
    assert resolve_model("hf:org/name").path == first.path
    assert fetched(site) == set()
    site.seen.clear()
    assert resolve_model("hf:org/name", offline=True).path == first.path
    assert resolve_model(f"hf:org/name@{COMMIT}").path == first.path
    assert not site.seen


def test_offline_needs_a_complete_earlier_pull(site: Site) -> None:
    add_hub_model(site, "org/name", SHARDED)
    with pytest.raises(PullError, match="offline"):
        resolve_model("hf:org/name", offline=True)
    site.statuses[f"/org/name/resolve/{COMMIT}/model-00002-of-00002.safetensors"] = [404]
    with pytest.raises(PullError, match="model-00002-of-00002"):
        resolve_model("hf:org/name")
    with pytest.raises(PullError, match="offline"):
        resolve_model("hf:org/name", offline=True)
    assert resolve_model("hf:org/name").path.is_dir()


def test_a_broken_transfer_is_resumed(site: Site) -> None:
    add_hub_model(site, "org/name", SHARDED)
    path = f"/org/name/resolve/{COMMIT}/model-00001-of-00002.safetensors"
    site.die_after[path] = [20_000]
    resolve_model("hf:org/name")
    assert site.ranges_of(path) == [None, "bytes=20000-"]


@pytest.mark.parametrize("name", ["config.json", "model-00001-of-00002.safetensors"])
def test_wrong_bytes_are_refused(site: Site, name: str) -> None:
    add_hub_model(site, "org/name", SHARDED)
    path = f"/org/name/resolve/{COMMIT}/{name}"
    right, site.files[path] = site.files[path], bytes(len(site.files[path]))
    with pytest.raises(PullError, match=f"{name}: wrong"):
        resolve_model("hf:org/name")
    site.files[path] = right
    assert resolve_model("hf:org/name").path.is_dir()


@pytest.mark.parametrize("evil", ["../evil.gguf", "/etc/evil.gguf", "a/../../evil.gguf", "..\\evil.gguf"])
def test_file_names_cannot_lead_out(site: Site, tmp_path: Path, evil: str) -> None:
    add_hub_model(site, "org/name", {evil: b"x"})
    with pytest.raises(PullError, match="refused the file name"):
        resolve_model("hf:org/name")
    assert not list(tmp_path.rglob("*evil*"))


def test_shard_names_cannot_lead_out(site: Site, tmp_path: Path) -> None:
    index = json.dumps({"weight_map": {"t": "../../evil.safetensors"}}).encode()
    add_hub_model(site, "org/name", {"config.json": b"{}", "model.safetensors.index.json": index})
    with pytest.raises(PullError, match="evil"):
        resolve_model("hf:org/name")
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize(
    "listing",
    [b"", b"[]", b"{}", b'{"sha": "x", "siblings": []}', b'{"sha": "../../x", "siblings": []}', b"\xff"],
)
def test_an_odd_listing_is_refused(site: Site, listing: bytes) -> None:
    site.files["/api/models/org/name/revision/main"] = listing
    with pytest.raises(PullError, match="hf:org/name"):
        resolve_model("hf:org/name")


def test_a_model_without_weights_is_refused(site: Site) -> None:
    add_hub_model(site, "org/name", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    with pytest.raises(PullError, match="neither safetensors"):
        resolve_model("hf:org/name")


def test_the_token_is_sent_to_the_hub_only(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    add_hub_model(site, "org/name", {"m.gguf": b"GGUF"})
    place = f"/org/name/resolve/{COMMIT}/m.gguf"
    site.files["/elsewhere"] = site.files[place]
    site.redirects[place] = site.url.replace("127.0.0.1", "localhost") + "/elsewhere"
    monkeypatch.setenv("HF_TOKEN", "secret")
    resolve_model("hf:org/name")
    assert [(path, token) for path, _, token in site.seen] == [
        ("/api/models/org/name/revision/main", "Bearer secret"),
        (place, "Bearer secret"),
        ("/elsewhere", None),
    ]


def test_a_gated_model_says_so(site: Site) -> None:
    site.statuses["/api/models/org/name/revision/main"] = [401]
    with pytest.raises(PullError, match=r"HTTP 401.*credentials"):
        resolve_model("hf:org/name")


@pytest.mark.parametrize("spec", ["hf:", "hf:name", "hf:../name", "hf:org/..", "hf:org/name@../x", "hf:org/a b"])
def test_malformed_names(spec: str) -> None:
    with pytest.raises(PullError, match="ORG/NAME"):
        resolve_model(spec)
