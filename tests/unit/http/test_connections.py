"""Connections that serve nobody are ended; one whose request is being answered to somebody never is."""

from __future__ import annotations

from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.api.http.connections import BoundedProtocol


class Transport:
    def __init__(self) -> None:
        self.closing = self.aborted = False
        self.unsent = 0

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A protocol that is looked at by hand, without a loop."""
    monkeypatch.setattr(BoundedProtocol, "_look_later", lambda _: None)
    made: Any = BoundedProtocol.__new__(BoundedProtocol)
    made.transport, made.cycle, made._seen = Transport(), None, None
    made.flow = FlowControl(made.transport)
    return made


class Cycle:
    """A request and its answer, as uvicorn keeps them."""

    def __init__(self, complete: bool = False) -> None:
        self.response_complete = complete


def test_one_that_never_sends_a_whole_request_is_ended(connection: Any) -> None:
    connection._look()
    assert not connection.transport.aborted
    connection._look()
    assert connection.transport.aborted


def test_one_whose_request_is_being_answered_is_left_alone(connection: Any) -> None:
    connection.cycle = Cycle()
    for _ in range(5):
        connection._look()
    assert not connection.transport.aborted


def test_one_that_asks_again_and_again_is_left_alone(connection: Any) -> None:
    for _ in range(5):
        connection.cycle = Cycle(complete=True)
        connection._look()
    assert not connection.transport.aborted
    connection._look()  # and nothing more came
    assert connection.transport.aborted


def test_one_that_was_closed_but_takes_nothing_is_ended(connection: Any) -> None:
    connection.cycle = Cycle()
    connection.transport.closing = True
    connection._look()
    assert not connection.transport.aborted  # what is left may still be taken
    connection._look()
    assert connection.transport.aborted


@pytest.mark.parametrize("complete", [True, False])
def test_one_that_takes_its_answer_slowly_is_left_alone_and_one_that_takes_nothing_is_ended(
    connection: Any, complete: bool
) -> None:
    connection.cycle = Cycle(complete)
    connection.flow.pause_writing()  # there is no room for more
    for unsent in range(1 << 20, 1 << 19, -1000):
        connection.transport.unsent = unsent
        connection._look()
    assert not connection.transport.aborted
    connection._look()  # not a byte was taken
    assert connection.transport.aborted


def test_the_parser_is_the_same_wherever_it_runs() -> None:
    """With httptools the one whose request is being answered is not the one that hears of the connection's end."""
    assert issubclass(BoundedProtocol, H11Protocol)
