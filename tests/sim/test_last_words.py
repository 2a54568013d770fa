"""An engine process that says why it does not start and ends at once: what it said counts, not that it ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from headrace.contract.errors import ConfigError, EngineDead
from headrace.engine.messages import Failed
from headrace.engine.process import ProcessClient


def waiting(polls: Iterator[bool]) -> Any:
    """A client whose child has ended; ``polls``: whether something is there, each time it looks."""
    client: Any = ProcessClient.__new__(ProcessClient)
    said = msgspec.msgpack.encode(Failed.of(ConfigError("model", "no such model")))
    client._socket = SimpleNamespace(poll=lambda _: next(polls), recv=lambda: said)
    client._process = SimpleNamespace(is_alive=lambda: False, exitcode=0)
    client._give_up = threading.Event()
    return client


def test_what_arrives_just_after_its_end_is_heard() -> None:
    with pytest.raises(EngineDead, match="the engine did not start: model: no such model"):
        waiting(iter([False, True, True]))._await_ready(30.0)


def test_one_that_said_nothing_is_told_by_its_end() -> None:
    with pytest.raises(EngineDead, match="ended at start"):
        waiting(iter([False, False]))._await_ready(30.0)
