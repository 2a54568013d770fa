from __future__ import annotations

from pathlib import Path

import pytest

from headrace import env
from headrace.contract.errors import ConfigError


def test_the_cache_follows_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("HEADRACE_CACHE", "~/own")
    assert env.cache_dir() == Path("/home/someone/own")
    monkeypatch.delenv("HEADRACE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert env.cache_dir() == Path("/xdg/headrace")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert env.cache_dir() == Path("/home/someone/.cache/headrace")


def test_thread_counts_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_NUM_THREADS", raising=False)
    assert env.num_threads() is None
    monkeypatch.setenv("HEADRACE_NUM_THREADS", "3")
    assert env.num_threads() == 3
    for wrong in ("0", "-1", "two", "1.5", "1025"):
        monkeypatch.setenv("HEADRACE_NUM_THREADS", wrong)
        with pytest.raises(ConfigError, match="HEADRACE_NUM_THREADS"):
            env.num_threads()


def test_empty_variables_count_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADRACE_TEST_DATA", "HEADRACE_ISA", "HF_ENDPOINT", "HF_TOKEN"):
        monkeypatch.setenv(name, "")
    found = (env.test_data(), env.isa(), env.hub_endpoint(), env.hub_token())
    assert found == (None, None, "https://huggingface.co", None)


def test_pip_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "a b")
    monkeypatch.setenv("PIP_CERT", "")
    assert env.pip_options()["extra-index-url"] == "a b"
    assert "cert" not in env.pip_options()
