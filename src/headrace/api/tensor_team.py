"""A model cut over processes: the leader is the engine's own process, followers are started by it and end with it.

Followers are plain Python processes on one end of a socket pair: an engine that is a daemon itself may start them.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from headrace import env
from headrace.config import EngineConfig, kv_format, resolve
from headrace.contract.errors import ConfigError, GroupBroken, HeadraceError
from headrace.engine.orphans import born_deaf, end_with, leave, leave_signals_to_the_front
from headrace.kernels.processors import usable_processors
from headrace.models.context import Model
from headrace.models.dense.sharded import ShardedModel
from headrace.parallel.gloo import GlooExchange
from headrace.parallel.tensor import TensorShare
from headrace.worker.followers import Followers, follow
from headrace.worker.kv_tensors import allocate_kv
from headrace.worker.runner import Runner

START_S = 600.0  # loading a large model from a cold disk
END_S = 10.0
GONE_S, POLL_S = 2.0, 0.02


class Team:
    """The followers of one engine. ``share`` is the leader's own."""

    def __init__(self, config: EngineConfig, size: int) -> None:
        """``config``: what each rank runs with."""
        self.share, self._timeout_s = TensorShare(0, size), config.runtime.step_timeout_s
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-team-")
        self._meeting = f"file:{Path(self._folder.name) / 'meeting'}"
        started = [self._start(rank, dataclasses.asdict(config)) for rank in range(1, size)]
        self._processes = [process for process, _ in started]
        self._pipes = [pipe for _, pipe in started]
        self.followers = Followers(self._pipes)
        self._begun = False

    def _start(self, rank: int, settings: dict[str, Any]) -> tuple[subprocess.Popen[bytes], Connection[Any, Any]]:
        ours, theirs = socket.socketpair()
        with theirs, born_deaf():
            call = f"follower_main({theirs.fileno()}, {os.getpid()})"
            words = f"from headrace.api.tensor_team import follower_main; {call}"
            process = subprocess.Popen([sys.executable, "-c", words], pass_fds=[theirs.fileno()])
        pipe: Connection[Any, Any] = Connection(ours.detach())
        pipe.send((rank, self.share.size, self._meeting, settings))
        return process, pipe

    def begin(self, model: Model, num_blocks: int) -> None:
        """All have loaded: they get KV of as many blocks as the leader, and meet. Raises GroupBroken."""
        assert isinstance(model, ShardedModel), "loading with a share has seen to it"
        for number, pipe in enumerate(self._pipes):
            try:
                said = pipe.recv() if pipe.poll(START_S) else f"was not ready within {START_S:g} s"
            except (EOFError, OSError):
                said = "ended at start"
            if said is not None:
                raise GroupBroken(f"rank {number + 1} of {self.share.size}: {said}")
        for pipe in self._pipes:
            pipe.send(num_blocks)
        self._begun = True
        model.join(self._exchange())

    def _exchange(self) -> GlooExchange:
        return GlooExchange(0, self.share.size, self._meeting, START_S, self._timeout_s, who_is_gone=self.gone)

    def gone(self) -> str:
        """Which followers ended otherwise than by themselves, in words. Waits a moment: a connection is closed before
        its process has ended."""
        deadline, ended = time.monotonic() + GONE_S, list[str]()
        while not ended and time.monotonic() < deadline:
            time.sleep(POLL_S)
            codes = ((rank, process.pid, process.poll()) for rank, process in enumerate(self._processes, start=1))
            size = self.share.size
            ended = [f"rank {rank} of {size} (process {pid}) ended: exit code {c}" for rank, pid, c in codes if c]
        return ", ".join(ended)

    def close(self) -> None:
        """Followers end; one that does not in time, or is still loading, is killed."""
        self.followers.close()
        for process in self._processes:
            if not self._begun:
                process.kill()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(END_S)
        self._folder.cleanup()


@contextmanager
def opened_team(config: EngineConfig) -> Iterator[tuple[Team | None, EngineConfig]]:
    """The team, and what the leader runs with; no team where one rank has all. It is closed when the body fails."""
    size = config.group.tensor_parallel_size
    if size == 1:
        yield None, config
        return
    config = rank_config(config, size)
    team = Team(config, size)
    try:
        yield team, config
    except BaseException:
        team.close()
        raise


def rank_config(config: EngineConfig, size: int) -> EngineConfig:
    """An even share of threads and KV memory. Raises ConfigError when there are fewer threads than ranks."""
    threads = config.runtime.num_threads or env.num_threads() or usable_processors()
    if threads < size:
        words = f"{size} ranks cannot share {threads} threads: each needs one. Use at most {threads}, or "
        raise ConfigError("tensor_parallel_size", f"{words}num_threads (--threads) {size}")
    cache = config.cache
    memory = None if cache.kv_memory is None else max(1, cache.kv_memory // size)
    fraction = cache.kv_memory_fraction / size
    return dataclasses.replace(
        config,
        # Blocks of a rank hold its heads only: no store could tell whose.
        cache=dataclasses.replace(cache, kv_memory=memory, kv_memory_fraction=fraction, kv_store="off"),
        runtime=dataclasses.replace(config.runtime, num_threads=threads // size, pinning="none"),
        group=dataclasses.replace(config.group, tensor_parallel_size=1),
    )


def follower_main(descriptor: int, leader: int) -> None:
    """A follower's process: loads its part, says so, and follows. ``leader``: the process it ends with."""
    from .launch import load_parts

    leave_signals_to_the_front()
    end_with(leader)  # the pipe tells only who reads it
    pipe: Connection[Any, Any] = Connection(descriptor)
    rank, size, meeting, settings = pipe.recv()
    config = resolve(settings)
    try:
        parts = load_parts(config, None, TensorShare(rank, size))
    except HeadraceError as error:
        pipe.send(str(error))
        return
    pipe.send(None)
    try:
        num_blocks = pipe.recv()
    except EOFError:
        return  # the leader could not go on
    assert isinstance(parts.model, ShardedModel)
    parts.model.join(GlooExchange(rank, size, meeting, START_S, config.runtime.step_timeout_s))
    kv = allocate_kv(parts.model.kv_layout, num_blocks, config.cache.block_size, kv=kv_format(config))
    try:
        follow(Runner(parts.model, parts.ops, kv), pipe)
    except GroupBroken as error:
        print(f"{error}; it ends", file=sys.stderr)
    leave()
