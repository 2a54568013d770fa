"""What each rank of a group gets of the machine."""

from __future__ import annotations

import logging
import os
import threading

import pytest

from headrace.api.ranks import keep_to, rank_config, thread_shares
from headrace.config import EngineConfig, resolve
from headrace.contract.errors import ConfigError


def group(size: int, threads: int) -> EngineConfig:
    return resolve({"group": {"data_parallel_size": size}, "runtime": {"num_threads": threads, "pinning": "cores"}})


def test_threads_are_divided_and_processors_kept_only_where_ranks_have_their_own() -> None:
    config = group(3, 8)
    assert thread_shares(config) == [3, 3, 2]
    free, bound = (rank_config(config, 2, bound=own).runtime for own in (False, True))
    assert (free.num_threads, free.pinning, bound.num_threads, bound.pinning) == (2, "none", 2, "cores")


def test_fewer_threads_than_ranks_are_refused() -> None:
    with pytest.raises(ConfigError, match="3 ranks cannot share 2 threads"):
        rank_config(group(3, 2), 0)


def test_a_rank_keeps_to_its_processors_and_only_it(caplog: pytest.LogCaptureFixture) -> None:
    before, seen = os.sched_getaffinity(0), []
    chosen = min(before)

    def rank() -> None:
        keep_to([chosen])
        seen.append(os.sched_getaffinity(0))
        with caplog.at_level(logging.WARNING):
            keep_to([100_000])
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=rank)
    thread.start()
    thread.join(60)
    assert seen == [{chosen}, {chosen}]
    assert os.sched_getaffinity(0) == before
    assert "refused" in caplog.text
