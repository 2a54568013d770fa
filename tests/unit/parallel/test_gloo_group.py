"""Real processes that vote over gloo: a group at work, one whose member is killed, one that never meets."""

from __future__ import annotations

import multiprocessing
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest
from gloo_rank import run_rank

from headrace.contract.errors import ConfigError, GroupBroken
from headrace.parallel.gloo import GlooGroup

START_S = 120.0  # processes import torch, on a machine that may be busy


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class Processes:
    """``size`` ranks; ``next()`` is their next report. Each has a pipe of its own: a killed one could take the
    lock of a common queue along."""

    def __init__(self, size: int, max_tokens: int, timeout_s: float) -> None:
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe(duplex=False) for _ in range(size)]
        self.news = [reader for reader, _ in pipes]
        address = free_address()
        self.all = [
            context.Process(target=run_rank, args=(i, size, address, writer, max_tokens, timeout_s), daemon=True)
            for i, (_, writer) in enumerate(pipes)
        ]
        for process, (_, writer) in zip(self.all, pipes):
            process.start()
            writer.close()  # the child has its own

    def next(self, deadline_s: float = START_S) -> tuple[int, str, Any]:
        deadline = time.monotonic() + deadline_s
        while self.news and (readable := wait(self.news, max(0.0, deadline - time.monotonic()))):
            reader: Any = readable[0]
            try:
                report: tuple[int, str, Any] = reader.recv()
                return report
            except EOFError:  # its process ended
                self.news.remove(reader)
        raise TimeoutError(f"no rank reports within {deadline_s:g} s")

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.all:
            process.kill()
            process.join(10)


def test_a_group_serves_a_request_on_one_rank() -> None:
    with Processes(size=2, max_tokens=60, timeout_s=START_S) as group:
        results = {}
        while len(results) < 2:
            rank, what, value = group.next()
            assert what != "broken", value
            if what == "done":
                results[rank] = value
    assert len(results[0]) == 60
    assert results[1] == []


def test_killing_a_rank_ends_the_group_with_a_clear_error_within_the_deadline() -> None:
    timeout_s = 60.0
    with Processes(size=3, max_tokens=50_000, timeout_s=timeout_s) as group:
        assert {group.next()[1] for _ in range(3)} == {"running"}
        group.all[2].kill()
        killed = time.time()
        broken = [group.next(timeout_s) for _ in range(2)]
    for rank, what, (message, when) in sorted(broken):
        assert what == "broken"
        assert message.startswith(f"rank {rank} of 3: another rank is gone, or did not answer within 60 s")
        assert when - killed < timeout_s
    assert {rank for rank, _, _ in broken} == {0, 1}


def test_others_that_never_come_are_an_error() -> None:
    with pytest.raises(GroupBroken, match="rank 1 of 2 could not meet the others"):
        GlooGroup(1, 2, free_address(), timeout_s=0.5)


@pytest.mark.parametrize(
    ("rank", "address", "field"),
    [(2, "h:1", "rank"), (0, "here", "address"), (0, "h:x", "address"), (0, "file:", "address")],
)
def test_bad_places_are_named(rank: int, address: str, field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        GlooGroup(rank, 2, address)


def test_who_has_left_cannot_vote() -> None:
    group = GlooGroup(0, 1, free_address(), timeout_s=30)
    assert group.least([4, -2]) == [4, -2]
    group.close()
    with pytest.raises(GroupBroken, match="has left"):
        group.least([1])


def test_a_group_may_meet_in_a_file(tmp_path: Path) -> None:
    address = f"file:{tmp_path / 'meeting'}"
    with ThreadPoolExecutor(2) as pool:
        known = {1: lambda: "it was rank 0"}
        join = lambda rank: GlooGroup(rank, 2, address, timeout_s=30, who_is_gone=known.get(rank))  # noqa: E731
        first, second = pool.map(join, range(2))
        answers = pool.map(lambda group: group.least([3 - group.rank, group.rank]), (first, second))
        assert list(answers) == [[2, 0], [2, 0]]
    first.close()
    with pytest.raises(GroupBroken, match=r"^rank 1 of 2: it was rank 0$"):
        second.least([1])


def test_calls_may_have_a_deadline_of_their_own(tmp_path: Path) -> None:
    address = f"file:{tmp_path / 'meeting'}"
    with ThreadPoolExecutor(2) as pool:
        first, _second = pool.map(lambda rank: GlooGroup(rank, 2, address, 30, call_timeout_s=0.2), range(2))
    with pytest.raises(GroupBroken, match=r"did not answer within 0\.2 s"):
        first.least([1])
