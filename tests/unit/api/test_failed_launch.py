"""A launch that fails late leaves no thread behind, and so none of what threads hold open."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from cli_models import write_model
from role_engines import until

from headrace.api import launch as launching
from headrace.api import roles, split
from headrace.config import EngineConfig, resolve
from headrace.contract.errors import ConfigError


@pytest.fixture
def before() -> set[threading.Thread]:
    return set(threading.enumerate())


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    settings = {"model": write_model(tmp_path / "model"), "kv_memory": 4 << 20, "num_threads": 1}
    return resolve(settings | {"kv_store": str(tmp_path / "store")})


def fails(*_: Any, **__: Any) -> Any:
    raise ConfigError("late", "scripted")


def assert_nothing_left(before: set[threading.Thread]) -> None:
    until(lambda: not {thread for thread in threading.enumerate() if "headrace" in thread.name} - before)


@pytest.mark.parametrize("late", ["open_recorder", "make_cadence", "Engine"])
def test_an_engine_that_cannot_be_built_leaves_nothing(
    config: EngineConfig, before: set[threading.Thread], monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    monkeypatch.setattr(launching, late, fails)
    with pytest.raises(ConfigError, match="scripted"):
        launching.launch(config)
    assert_nothing_left(before)


def test_the_first_of_two_engines_goes_with_the_second(
    config: EngineConfig, before: set[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    build, built = split.build_engine, []

    def build_first(*given: Any, **more: Any) -> Any:
        if built:
            fails()
        built.append(build(*given, **more))
        return built[0]

    monkeypatch.setattr(split, "build_engine", build_first)
    with pytest.raises(ConfigError, match="scripted"):
        split.connect_split(config)
    assert built[0].closed
    assert_nothing_left(before)


@pytest.mark.parametrize("role", ["prompt", "completion"])
def test_an_engine_of_one_role_that_cannot_be_built_leaves_no_socket(
    config: EngineConfig, tmp_path: Path, before: set[threading.Thread], monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    monkeypatch.setattr(roles, "build_engine", fails)
    with pytest.raises(ConfigError, match="scripted"):
        roles.launch_role(config, role, f"ipc://{tmp_path / 'hand-off'}")
    assert_nothing_left(before)
