"""What comes back: StepResult (worker → engine, arrays of one step) and TokenDelta (engine → api, one request)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from .plan import IntArray


class TokenLogprobs(msgspec.Struct, frozen=True):
    """One token's place in the raw distribution, and the best ids of it (descending)."""

    token_id: int
    logprob: float
    rank: int
    top_ids: list[int] = []
    top_logprobs: list[float] = []


@dataclass(frozen=True, slots=True)
class LogprobArrays:
    """Rows of ``TokenLogprobs``: chosen (R,), rank (R,), top_ids (R, n), top_values (R, n)."""

    chosen: NDArray[np.float32]
    rank: IntArray
    top_ids: IntArray
    top_values: NDArray[np.float32]

    def take(self, rows: Any) -> LogprobArrays:
        """The given rows, in this order."""
        return LogprobArrays(self.chosen[rows], self.rank[rows], self.top_ids[rows], self.top_values[rows])

    def row(self, index: int, token_id: int, n: int) -> TokenLogprobs:
        """Row ``index`` with its ``n`` best ids."""
        return TokenLogprobs(
            int(token_id),
            float(self.chosen[index]),
            int(self.rank[index]),
            self.top_ids[index, :n].tolist(),
            self.top_values[index, :n].tolist(),
        )


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Logprobs of the prompt tokens at positions ``first`` .. ``first + rows - 1`` of one sequence."""

    first: int
    token_ids: IntArray
    values: LogprobArrays


@dataclass(frozen=True, slots=True)
class StepTimes:
    """When the device took up and left a step's two launches, ns of one clock."""

    forward_start_ns: int
    forward_end_ns: int
    sample_start_ns: int
    sample_end_ns: int

    @property
    def busy_ns(self) -> int:
        """What the device spent on the step."""
        return self.forward_end_ns - self.forward_start_ns + self.sample_end_ns - self.sample_start_ns


@dataclass(frozen=True, slots=True)
class Speculated:
    """A step's drafts, per slice (S,): how many were verified, how many of them stand. ``confidences``: per sequence
    that has drafts for its next step, each one's chance to be accepted if all before it are. ``rows`` the step
    computed, and what that took the device: drafting, the forward, and all that decides what is emitted. ``plain``: the
    step ran as without speculation."""

    verified: IntArray
    accepted: IntArray
    confidences: Mapping[int, list[float]]
    rows: int = 0
    draft_ms: float = 0.0
    forward_ms: float = 0.0
    sampler_ms: float = 0.0
    plain: bool = False


@dataclass(frozen=True, slots=True)
class RowError:
    """Why a sequence has no next token. ``by_structure``: the structured output that its request wants is at fault."""

    text: str
    by_structure: bool = False


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step's outcome, slices in plan order. ``offsets`` (S+1,) cut ``tokens`` into slices; ``num_valid`` (S,)
    says how many of a slice's rows stand. ``logprobs`` rows go with ``tokens`` (None: nobody asked).
    ``errors``: sequences whose row could not be sampled (they emit nothing). ``times``: None when not measured.

    The arrays are the loop's until the next step's result: whoever keeps any of them copies it."""

    step: int
    num_valid: IntArray
    offsets: IntArray
    tokens: IntArray
    logprobs: LogprobArrays | None = None
    prompt_logprobs: Mapping[int, PromptLogprobs] = field(default_factory=dict)
    errors: Mapping[int, RowError] = field(default_factory=dict)
    times: StepTimes | None = None
    speculated: Speculated | None = None


class TokenDelta(msgspec.Struct, frozen=True, gc=False):
    """News of one request: tokens since the last delta and, at the end, why it ended.

    ``finish_reason`` is None while it runs, else one of stop, length, abort, error. ``stop_token`` is the id that
    ended it. ``error_field`` names the field of the request that the error is about, where it is the request's own
    fault. ``num_cached_tokens`` and ``prompt_logprobs`` come with the first delta that has tokens. Not watched by the
    garbage collector: thousands are made a second, and none can be part of a cycle.
    """

    request_id: str
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_cached_tokens: int = 0
    finish_reason: str | None = None
    stop_token: int | None = None
    error: str | None = None
    error_field: str | None = None
