"""Ports: the few interfaces through which actors meet. Actors never import each other; ``launch`` connects them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .plan import SequenceStart, StepPlan
from .request import CHAT, KVClass
from .result import StepResult


class WorkerPort(Protocol):
    """Executes steps in order. ``launch_*`` return at once; all failures surface in ``collect``."""

    def launch_forward(self, plan: StepPlan, starts: Sequence[SequenceStart]) -> Any:
        """Queues the forward pass; returns a handle for the two calls below."""
        ...

    def launch_sample(self, handle: Any) -> None:
        """Queues sampling. The results of every earlier step have been collected by now."""
        ...

    def collect(self, handle: Any, timeout_s: float) -> StepResult:
        """Waits for the step. Raises WorkerError when it failed or the deadline passed."""
        ...

    def close(self) -> None: ...


Bytes = NDArray[np.uint8]


class BlockMover(Protocol):
    """Copies KV between device blocks and records, in the order of the device's steps.

    So a copy queued after a step's result came back reads what that step wrote, and one queued before a plan is done
    before that plan's step runs. Payloads by record kind. Failures surface in the futures.
    """

    def read(self, grains: Sequence[Sequence[int]]) -> Future[list[dict[int, Bytes]]]:
        """Records of grains, each given by its blocks, group after group; no record where a block is 0."""
        ...

    def write(self, blocks: Sequence[tuple[int, int, int]], payloads: Mapping[tuple[int, int], Bytes]) -> Future[None]:
        """Fills (group, position in blocks, block) from payloads by (grain, kind)."""
        ...


class KVSession(Protocol):
    """One sequence's dealings with a KV store. Used by the loop's thread; none of its calls waits."""

    def num_external_tokens(self) -> int | None:
        """Tokens from the prompt's start that can come from outside; None: not known yet.

        May be asked often and has no side effects; it is known within a deadline. What it names is in memory, checked.
        """
        ...

    @property
    def first(self) -> int:
        """The first token that would come from outside; those before it were in the pool when the session began."""
        ...

    def load(self, blocks: Sequence[tuple[int, int, int]]) -> Future[None]:
        """Queues the filling of blocks, (group, position, block), before any step planned later."""
        ...

    def seal(self, index: int, token_ids: Sequence[int], blocks: Sequence[int]) -> None:
        """Grain ``index`` is final in these blocks (group after group): to be saved by the next ``flush``."""
        ...

    def cancel(self) -> None:
        """Nothing will be loaded (any more)."""
        ...


class KVConnector(Protocol):
    """A KV store beside the pool. It may lose everything and refuse everything; what it gives is right."""

    def open(
        self,
        token_ids: Sequence[int],
        salt: str,
        adapter: str,
        num_local: int,
        wake: Callable[[], None],
        tenant: str,
        kv_class: KVClass = CHAT,
    ) -> KVSession:
        """``num_local``: tokens the pool holds; -1: nothing shall be loaded. ``wake`` is called on news.

        ``salt`` shapes names; ``tenant`` is whose they are: a name, or the caller's salt without what pictures add.
        ``kv_class``: how long what the sequence leaves shall stay.
        """
        ...

    def flush(self) -> None:
        """Queues the copies of what was sealed since the last time; must come before the next plan."""
        ...

    def counts(self) -> dict[str, int]:
        """What has happened since the start, by name."""
        ...

    def disable(self, reason: str) -> None:
        """From now on nothing is loaded and nothing saved."""
        ...

    def close(self) -> None:
        """Lets saves finish, up to a deadline."""
        ...


class StepObserver(Protocol):
    """Sees every call that changes the scheduler, in order (the flight recorder).

    Must not change anything and must not raise. ``planned`` sees empty plans too (``step`` -1). ``close`` comes
    last, when the engine closes.
    """

    def added(self, seq_id: int, fields: dict[str, Any]) -> None: ...
    def finished(self, seq_id: int, reason: str) -> None: ...
    def imported(self, seq_id: int, num_tokens: int, first: int) -> None: ...
    def cache_reset(self, running: bool) -> None: ...
    def planned(self, plan: StepPlan) -> None: ...
    def committed(self, step: int, num_valid: Any, offsets: Any, tokens: Any) -> None: ...
    def drafted(self, seq_id: int, tokens: list[int]) -> None: ...
    def judged(self, seq_id: int, confidences: list[float]) -> None: ...
    def priced(self, cost: Any) -> None: ...
    def failed(self, step: int, message: str) -> None: ...
    def readied(self, seq_id: int, ready: bool) -> None: ...
    def placed(self, seq_id: int, from_cache: bool = False) -> None: ...
    def forked(self, parent: int, seq_id: int, prompt: list[int], outputs: list[int]) -> None: ...
    def close(self) -> None: ...
