"""What ``generate`` returns. Field names are those vLLM users know."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.contract.result import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Logprob:
    """One id's log probability in the raw distribution; ``rank`` counts from 1."""

    logprob: float
    rank: int
    decoded_token: str | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One choice. ``finish_reason`` None while it runs, else stop, length, abort or error.

    ``stop_reason`` is the stop string or stop id that ended it (None for end-of-sequence).
    ``logprobs`` has one dict per token: the chosen id and the asked number of best ids.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    error_field: str | None = None  # of the request, where the error is the request's own fault


@dataclass(slots=True)
class RequestOutput:
    """One prompt and its choices. ``prompt_logprobs``: None for the first token, then one dict per token."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    num_cached_tokens: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None


def logprob_dict(entry: TokenLogprobs, decode: dict[int, str]) -> dict[int, Logprob]:
    """The chosen id first, then the best ids; ``decode`` maps ids to text where known."""
    out = {entry.token_id: Logprob(entry.logprob, entry.rank, decode.get(entry.token_id))}
    for rank, (token, value) in enumerate(zip(entry.top_ids, entry.top_logprobs), 1):
        out.setdefault(token, Logprob(value, rank, decode.get(token)))
    return out
