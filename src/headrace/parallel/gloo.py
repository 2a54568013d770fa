"""A group of processes over ``torch.distributed`` with gloo, which runs on any CPU and over TCP.

Imports torch; nothing else in this room does. The group is its own (not torch's default one), so that model
collectives and votes never mix.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import ProcessGroupGloo

from headrace.contract.errors import ConfigError, GroupBroken


class GlooGroup:
    """This process's end. ``address``: ``host:port`` of the meeting point, which rank 0 opens.

    Raises GroupBroken when the others do not come within ``timeout_s``; the same deadline holds for each call.
    """

    def __init__(self, rank: int, size: int, address: str, timeout_s: float = 120.0) -> None:
        if not 0 <= rank < size:
            raise ConfigError("rank", f"{rank} is not a rank of a group of {size}")
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise ConfigError("address", f"must be host:port, not {address!r}")
        self.rank = rank
        self.size = size
        self._timeout_s = timeout_s
        self._group: ProcessGroupGloo | None = None
        deadline = timedelta(seconds=timeout_s)
        try:
            # Kept: the ranks find each other in it.
            self._store = dist.TCPStore(host, int(port), size, is_master=rank == 0, timeout=deadline)  # type: ignore[attr-defined]
            self._group = ProcessGroupGloo(self._store, rank, size, deadline)
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
