"""A group of processes over ``torch.distributed`` with gloo, which runs on any CPU and over TCP.

Imports torch; nothing else in this room does. The group is its own (not torch's default one), so that model
collectives and votes never mix. It knows no one's name and no password: who can reach a meeting point can join, so a
group on one machine meets in a file and listens on the loopback address alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import ProcessGroupGloo

from headrace.contract.errors import ConfigError, GroupBroken


class GlooGroup:
    """This process's end. ``address`` is the meeting point: ``host:port``, which rank 0 opens, or ``file:PATH`` for
    processes of one machine, in a folder that only their user can enter; the system then chooses all ports.

    Raises GroupBroken when the others do not come within ``timeout_s``; the same deadline holds for each call, unless
    ``call_timeout_s`` sets another.
    """

    def __init__(
        self, rank: int, size: int, address: str, timeout_s: float = 120.0, call_timeout_s: float | None = None
    ) -> None:
        if not 0 <= rank < size:
            raise ConfigError("rank", f"{rank} is not a rank of a group of {size}")
        deadline = timedelta(seconds=timeout_s)
        meet = _meeting(address, rank, size, deadline)
        self.rank = rank
        self.size = size
        self._timeout_s = timeout_s if call_timeout_s is None else call_timeout_s
        self._group: ProcessGroupGloo | None = None
        try:
            self._store, options = meet()  # kept: the ranks find each other in it
            self._group = ProcessGroupGloo(self._store, rank, size, options)
        except (RuntimeError, dist.DistError) as error:
            raise GroupBroken(f"rank {rank} of {size} could not meet the others at {address}: {error}") from error

    def least(self, values: Sequence[int]) -> list[int]:
        """The least of each value over all ranks. Raises GroupBroken when a rank is gone or silent."""
        if self._group is None:
            raise GroupBroken(f"rank {self.rank} of {self.size} has left its group")
        votes = torch.tensor(list(values), dtype=torch.int64)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MIN  # type: ignore[assignment]
        options.timeout = timedelta(seconds=self._timeout_s)
        try:
            self._group.allreduce([votes], options).wait()  # type: ignore[attr-defined]
        except RuntimeError as error:
            self.close()
            reason = str(error).splitlines()[0]
            raise GroupBroken(
                f"rank {self.rank} of {self.size}: another rank is gone, or did not answer within "
                f"{self._timeout_s:g} s ({reason})"
            ) from error
        answer: list[int] = votes.tolist()
        return answer

    def close(self) -> None:
        """Leaves the group: connections close, so the others notice at their next call."""
        self._group = None


def _meeting(address: str, rank: int, size: int, deadline: timedelta) -> Callable[[], tuple[Any, Any]]:
    """What opens the store and says where to listen; both may take until the deadline. Raises ConfigError now."""
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = deadline
    kind, _, path = address.partition(":")
    if kind == "file" and path:

        def in_file() -> tuple[Any, Any]:
            options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
            store = dist.FileStore(path, size)  # type: ignore[attr-defined]
            store.set_timeout(deadline)
            return store, options

        return in_file
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError("address", f"must be host:port or file:PATH, not {address!r}")

    def at_port() -> tuple[Any, Any]:
        options._devices = [ProcessGroupGloo.create_default_device()]
        store = dist.TCPStore(host, int(port), size, is_master=rank == 0, timeout=deadline)  # type: ignore[attr-defined]
        return store, options

    return at_port
