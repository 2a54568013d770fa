"""Ports: the few interfaces through which actors meet. Actors never import each other; ``launch`` connects them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from .plan import SequenceStart, StepPlan
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


class KVConnector(Protocol):
    """A KV store beside the pool. Asked before admission; may be asked often and has no side effects."""

    def num_external_tokens(self, token_ids: Sequence[int], num_local: int) -> int | None:
        """How many more tokens can come from outside; None: not known yet."""
        ...


class StepObserver(Protocol):
    """Sees every call that changes the scheduler, in order (the flight recorder).

    Must not change anything and must not raise. ``planned`` sees empty plans too (``step`` -1). ``close`` comes
    last, when the engine closes.
    """

    def added(self, seq_id: int, fields: dict[str, Any]) -> None: ...
    def finished(self, seq_id: int, reason: str) -> None: ...
    def planned(self, plan: StepPlan) -> None: ...
    def committed(self, step: int, num_valid: Any, offsets: Any, tokens: Any) -> None: ...
    def failed(self, step: int, message: str) -> None: ...
    def readied(self, seq_id: int, ready: bool) -> None: ...
    def placed(self, seq_id: int) -> None: ...
    def forked(self, parent: int, seq_id: int, prompt: list[int], outputs: list[int]) -> None: ...
    def close(self) -> None: ...
