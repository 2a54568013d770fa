"""One step on several ranks: the leader's worker says what runs, followers run the same on their part of the model.

A follower has no scheduler and no sampler: it sees packed batches, in order, and meets the leader inside the forward
pass. It ends with its leader, whose end of the pipe closes then. Pipes hold what is to come; a step is small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from multiprocessing.connection import Connection
from typing import Any

import torch

from headrace.contract.batch import PackedBatch
from headrace.contract.errors import GroupBroken
from headrace.contract.plan import IntArray

from .runner import Runner

POLL_S = 1.0


class Followers:
    """The leader's end; ``pipes[i]`` leads to rank i + 1. Used by the device thread."""

    def __init__(self, pipes: Sequence[Connection[Any, Any]]) -> None:
        self._pipes = pipes

    def step(self, batch: PackedBatch) -> None:
        """Before the leader's own forward of it. Raises GroupBroken when a follower is gone."""
        self._tell({field.name: getattr(batch, field.name) for field in fields(batch)})

    def clone(self, pairs: IntArray) -> None:
        """Copies KV blocks, as ``Runner.clone_blocks``, before any later step."""
        self._tell(pairs)

    def _tell(self, message: Any) -> None:
        for number, pipe in enumerate(self._pipes):
            try:
                pipe.send(message)
            except OSError as error:
                raise GroupBroken(f"rank {number + 1} of {len(self._pipes) + 1} is gone: {error}") from error

    def close(self) -> None:
        """Followers end."""
        for pipe in self._pipes:
            pipe.close()


@torch.inference_mode()
def follow(runner: Runner, pipe: Connection[Any, Any]) -> None:
    """Runs what the leader says until it is gone. Raises GroupBroken when another follower is."""
    while True:
        if not pipe.poll(POLL_S):
            continue
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            return
        if isinstance(message, dict):
            runner.model.forward(runner.context(PackedBatch(**message)))
        else:
            runner.clone_blocks(message)
