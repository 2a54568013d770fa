"""Pipes, devices and oversized files are refused at once wherever a user names a file. A pipe that was opened would
block for ever: the alarm turns that into a failure."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_models import CONFIGS, random_tensors, write_directory

from headrace.config import resolve
from headrace.contract.errors import ConfigError, ModelError
from headrace.contract.files import read_small
from headrace.models.weights import open_checkpoint
from headrace.models.weights.gguf_header import read_metadata
from headrace.obs.recorder import Recorder

BLOCKED_S = 30


@pytest.fixture(autouse=True)
def _not_for_ever() -> Iterator[None]:
    def blocked(*_: Any) -> None:
        raise AssertionError("blocked on a file that is none")

    before = signal.signal(signal.SIGALRM, blocked)
    signal.alarm(BLOCKED_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(params=["pipe", "device", "folder"])
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Something that is there and is no file; the device through a link."""
    path = tmp_path / "odd"
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    return path


def put(odd: Path, path: Path) -> Path:
    """``odd`` in place of ``path``."""
    path.unlink(missing_ok=True)
    return odd.rename(path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.safetensors.index.json"])
def test_a_model_directory(odd: Path, tmp_path: Path, name: str) -> None:
    config = CONFIGS["llama"]
    folder = write_directory(tmp_path / "model", config, random_tensors(config))
    assert (folder / "model.safetensors").is_file()
    put(odd, folder / name)
    with pytest.raises(ModelError, match=f"{name}.*not a"):
        open_checkpoint(folder)


def test_a_single_model_file(odd: Path, tmp_path: Path) -> None:
    file = put(odd, tmp_path / "m.gguf")
    if file.is_dir():
        pytest.skip("a directory is a form of its own")
    with pytest.raises(ModelError, match="not a regular file"):
        open_checkpoint(file)
    with pytest.raises(ModelError, match="not a regular file"):
        read_metadata(file)


def test_the_settings_file(odd: Path) -> None:
    with pytest.raises(ConfigError, match=r"config: .*not a regular file"):
        resolve({}, odd)


def test_a_recording(odd: Path) -> None:
    if odd.is_char_device():
        pytest.skip("a device takes bytes at once")
    with pytest.raises(ConfigError, match=r"record: .*not a regular file"):
        Recorder.open(odd, {})


def test_a_link_to_a_file_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert read_small(tmp_path / "b", 3) == b"abc"


def test_a_text_beyond_the_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    with pytest.raises(OSError, match="larger than 2 bytes"):
        read_small(tmp_path / "a", 2)


@pytest.mark.parametrize("text", [b"max_seqs = 1\n# \xff", b"max_seqs = ", b"a = " + b"[" * 50_000])
def test_a_settings_file_that_is_no_toml_is_named(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "odd.toml").write_bytes(text)
    with pytest.raises(ConfigError, match=r"config: .*odd\.toml: "):
        resolve({}, tmp_path / "odd.toml")
