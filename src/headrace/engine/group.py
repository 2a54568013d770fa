"""The front of a data-parallel group: N engines in processes of their own behind one EngineClient.

Requests go where the fewest tokens are in flight. The group lives and dies as one: when a rank is gone, the others are
ended and every open request is told why, so that whoever watches can start the whole group again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from headrace.contract.errors import EngineDead
from headrace.contract.request import Request
from headrace.contract.result import TokenDelta
from headrace.contract.stats import EngineStats, total_stats

from .client import DeltaSink
from .messages import Builder
from .process import SILENCE_TIMEOUT_S, START_TIMEOUT_S, ProcessClient
from .profiling import profile_each
from .starting import Flag, start_together


class Loads:
    """Which rank has which request, and how many tokens each rank has in flight. Not thread-safe.

    A request counts its prompt and what it has generated: how far it will go nobody knows.
    """

    def __init__(self, num_ranks: int) -> None:
        self._of: dict[str, tuple[int, int]] = {}  # request: rank, tokens
        self.tokens = [0] * num_ranks
        self.requests = [0] * num_ranks

    def place(self, request: Request) -> int:
        """The rank with the fewest tokens, then with the fewest requests, then the first. Choices of one prompt share
        its KV, so they stay together."""
        sibling = self.rank_of(request.shares) if request.shares else None
        rank = sibling if sibling is not None else self._least()
        self._of[request.request_id] = rank, 0
        self.requests[rank] += 1
        self.grow(request.request_id, len(request.prompt_token_ids))
        return rank

    def _least(self) -> int:
        return min(range(len(self.tokens)), key=lambda r: (self.tokens[r], self.requests[r], r))

    def grow(self, request_id: str, num_tokens: int) -> None:
        if request_id in self._of:
            rank, before = self._of[request_id]
            self._of[request_id] = rank, before + num_tokens
            self.tokens[rank] += num_tokens

    def leave(self, request_id: str) -> None:
        rank, tokens = self._of.pop(request_id, (0, None))
        if tokens is not None:
            self.tokens[rank] -= tokens
            self.requests[rank] -= 1

    def rank_of(self, request_id: str) -> int | None:
        place = self._of.get(request_id)
        return None if place is None else place[0]


class GroupClient:
    """Starts one engine per argument and waits until all are ready. Raises EngineDead when one is not.

    ``votes``: the ranks decide together before each step, so a request for one wakes them all. Thread-safe.
    """

    def __init__(
        self,
        build: Builder,
        arguments: Sequence[Any],
        *,
        votes: bool,
        start_timeout_s: float = START_TIMEOUT_S,
        silence_timeout_s: float = SILENCE_TIMEOUT_S,
        give_up: Flag | None = None,
        leftovers: Sequence[str] = (),
    ) -> None:
        self._votes = votes
        self._lock = threading.Lock()
        self._dead: str | None = None
        self._closing = False
        self._loads = Loads(len(arguments))
        self._ranks: list[ProcessClient] = []
        times = {"start_timeout_s": start_timeout_s, "silence_timeout_s": silence_timeout_s}
        options: dict[str, Any] = times | {"leftovers": leftovers}
        self._ranks = self._start(build, arguments, options, give_up)
        self.infos = [rank.info for rank in self._ranks]
        if self._dead is not None:  # one died while another was still starting
            why = self._dead
            self.close()
            raise EngineDead(why)

    def _start(
        self, build: Builder, arguments: Sequence[Any], options: Mapping[str, Any], give_up: Flag | None
    ) -> list[ProcessClient]:
        """All at once, because ranks of a voted group meet before they are ready; one failure ends the wait of all."""

        def start(rank: int, flag: Flag) -> ProcessClient:
            label, on_dead = f"rank {rank} of {len(arguments)}", lambda why: self._end_all(rank, why)
            try:
                return ProcessClient(build, arguments[rank], give_up=flag, on_dead=on_dead, label=label, **options)
            except EngineDead as error:
                raise type(error)(f"{label}: {error}") from error

        return start_together([partial(start, rank) for rank in range(len(arguments))], give_up)

    # -- doors ----------------------------------------------------------------------------------------------------

    def submit(self, request: Request, sink: DeltaSink) -> None:
        """Raises InvalidRequest or EngineDead before anything is queued."""
        with self._lock:
            if self._dead is not None or self._closing:
                raise EngineDead(self._dead or "the client was closed")
            rank = self._loads.place(request)
        try:
            self._ranks[rank].submit(request, self._watched(sink))
        except Exception:
            with self._lock:
                self._loads.leave(request.request_id)
            raise
        if self._votes:
            for other in self._ranks[:rank] + self._ranks[rank + 1 :]:
                other.poke()

    def _watched(self, sink: DeltaSink) -> DeltaSink:
        def watch(delta: TokenDelta) -> None:
            with self._lock:
                self._loads.grow(delta.request_id, len(delta.token_ids))
                if delta.finish_reason is not None:
                    self._loads.leave(delta.request_id)
            sink(delta)

        return watch

    def abort(self, request_id: str) -> None:
        if (rank := self._rank_of(request_id)) is not None:
            self._ranks[rank].abort(request_id)

    def stop(self, request_id: str) -> None:
        if (rank := self._rank_of(request_id)) is not None:
            self._ranks[rank].stop(request_id)

    def _rank_of(self, request_id: str) -> int | None:
        with self._lock:
            return self._loads.rank_of(request_id)

    # -- state ----------------------------------------------------------------------------------------------------

    @property
    def gone(self) -> str | None:
        """Why it is gone though nobody closed it: which rank, and how it ended."""
        return self._dead or next((why for rank in self._ranks if (why := rank.gone) is not None), None)

    @property
    def alive(self) -> bool:
        return self._dead is None and not self._closing and all(rank.alive for rank in self._ranks)

    @property
    def ready(self) -> bool:
        return self.alive

    @property
    def stats(self) -> EngineStats:
        """The sum over the ranks; empty when the group is gone."""
        return total_stats(self.rank_stats)

    @property
    def rank_stats(self) -> list[EngineStats]:
        return [rank.stats for rank in self._ranks] if self.alive else []

    @property
    def pids(self) -> list[int | None]:
        return [rank.pid for rank in self._ranks]

    def profile(self, seconds: float) -> dict[str, dict[str, int]]:
        """All ranks during the same time. Raises EngineDead."""
        return profile_each({f"rank {number}": rank for number, rank in enumerate(self._ranks)}, seconds)

    # -- ends -----------------------------------------------------------------------------------------------------

    def _end_all(self, rank: int, why: str) -> None:
        """One is gone, and with it the group."""
        with self._lock:
            if self._dead is not None or self._closing:
                return
            self._dead = why
            others = self._ranks[:rank] + self._ranks[rank + 1 :]
        for other in others:
            other.kill(why)

    def close(self) -> None:
        """Ends all ranks together: a voted rank that is left alone could only wait for the others. Where one is gone
        already, the requests of all are told so."""
        with self._lock:
            if self._closing:
                return
            self._dead = why = self.gone
            self._closing = True
        if why is not None:
            for rank in self._ranks:
                rank.kill(why)
        with ThreadPoolExecutor(len(self._ranks)) as pool:
            list(pool.map(lambda rank: rank.close(), self._ranks))
