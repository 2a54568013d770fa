"""Groups of processes over ``torch.distributed`` with gloo, which runs on any CPU and over TCP.

Each group is its own (not torch's default one): votes go over a ``GlooGroup``, rows of a step over a ``GlooExchange``,
and the two never mix. Neither knows a name or a password: who can reach a meeting point can join, so a group on one
machine meets in a file and listens on the loopback address alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import ProcessGroupGloo

from headrace.contract.errors import ConfigError, GroupBroken


class _Joined:
    """One process's end of a group that has met."""

    def __init__(
        self,
        rank: int,
        size: int,
        address: str,
        timeout_s: float = 120.0,
        call_timeout_s: float | None = None,
        *,
        who_is_gone: Callable[[], str] | None = None,
    ) -> None:
        """``address`` is the meeting point: ``host:port``, which rank 0 opens, or ``file:PATH`` for processes of one
        machine, in a folder that only their user can enter; the system then chooses all ports.

        Raises GroupBroken when the others do not come within ``timeout_s``; the same deadline holds for each call,
        unless ``call_timeout_s`` sets another. ``who_is_gone``: whoever started the others says which of them ended,
        in words, or nothing.
        """
        if not 0 <= rank < size:
            raise ConfigError("rank", f"{rank} is not a rank of a group of {size}")
        deadline = timedelta(seconds=timeout_s)
        meet = _meeting(address, rank, size, deadline)
        self._who_is_gone = who_is_gone or (lambda: "")
        self.rank = rank
        self.size = size
        self._timeout_s = timeout_s if call_timeout_s is None else call_timeout_s
        self._group: ProcessGroupGloo | None = None
        try:
            self._store, options = meet()  # kept: the ranks find each other in it
            self._group = ProcessGroupGloo(self._store, rank, size, options)
        except (RuntimeError, dist.DistError) as error:
            raise GroupBroken(f"rank {rank} of {size} could not meet the others at {address}: {error}") from error

    def _call(self, options: Any, start: Callable[[Any, Any], Any]) -> None:
        """Starts a collective and waits for it. Raises GroupBroken when a rank is gone or silent."""
        if self._group is None:
            raise GroupBroken(f"rank {self.rank} of {self.size} has left its group")
        options.timeout = timedelta(seconds=self._timeout_s)
        try:
            start(self._group, options).wait()
        except RuntimeError as error:
            self.close()
            whole = f"another rank is gone, or did not answer within {self._timeout_s:g} s ({_first_words(error)})"
            raise GroupBroken(f"rank {self.rank} of {self.size}: {self._who_is_gone() or whole}") from error

    def _reduced(self, values: Tensor, how: Any) -> Tensor:
        options = dist.AllreduceOptions()
        options.reduceOp = how
        out = values.clone()
        self._call(options, lambda group, options: group.allreduce([out], options))
        return out

    def close(self) -> None:
        """Leaves the group: connections close, so the others notice at their next call."""
        self._group = None


def _first_words(error: RuntimeError) -> str:
    """What happened, without the place in gloo's source before it and the advice behind it."""
    line = str(error).splitlines()[0]
    return re.sub(r"^\[[^\]]*:\d+\] ", "", line).partition(". ")[0]


class GlooGroup(_Joined):
    """This process's end of a group that votes (``collectives.Collective``)."""

    def least(self, values: Sequence[int]) -> list[int]:
        """The least of each value over all ranks. Raises GroupBroken when a rank is gone or silent."""
        votes = torch.tensor(list(values), dtype=torch.int64)
        answer: list[int] = self._reduced(votes, dist.ReduceOp.MIN).tolist()
        return answer


class GlooExchange(_Joined):
    """This process's end of an ``exchange.Exchange``."""

    def rows(self, parts: Sequence[Tensor], expected: Sequence[int] | None = None) -> list[Tensor]:
        sent = [len(part) for part in parts]
        ones = [1] * self.size
        counts = self._all_to_all(torch.tensor(sent), ones, ones).tolist() if expected is None else list(expected)
        return list(self._all_to_all(torch.cat(list(parts)), sent, counts).split(counts))

    def _all_to_all(self, values: Tensor, sent: list[int], received: list[int]) -> Tensor:
        out = torch.empty((sum(received), *values.shape[1:]), dtype=values.dtype)
        self._call(
            dist.AllToAllOptions(),
            lambda group, options: group.alltoall_base(out, values.contiguous(), received, sent, options),
        )
        return out

    def total(self, values: Tensor) -> Tensor:
        return self._reduced(values, dist.ReduceOp.SUM)


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
