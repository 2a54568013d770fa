"""Outputs: a committed step becomes deltas, one per request that has news. No scheduling, no text."""

from __future__ import annotations

from typing import Any

from headrace.contract.plan import Finish
from headrace.contract.result import StepResult, TokenDelta

from .book import Book, Entry

_REASONS = {Finish.STOP: "stop", Finish.LENGTH: "length", Finish.ABORT: "abort", Finish.ERROR: "error"}


def collect_deltas(book: Book, commit: Any, result: StepResult) -> list[TokenDelta]:
    """Deltas of a commit (the core's CommitResult). Ended requests leave the book."""
    for seq_id, news in result.prompt_logprobs.items():
        if (entry := book.of_seq(seq_id)) is not None:
            entry.take_prompt_logprobs(news)
    deltas: list[TokenDelta] = []
    of_seq, plain = book.of_seq, result.logprobs is None
    for index, seq_id, code, tokens in commit.news():  # a thousand of them per step
        entry = of_seq(seq_id)
        if entry is None:
            continue
        if plain and not code and entry.num_reported:  # the usual news: one more token, and nothing else changes
            entry.num_reported += len(tokens)
            deltas.append(TokenDelta(entry.request_id, tokens, None, None, entry.num_cached_tokens))
            continue
        deltas.append(_delta(entry, tokens, code, int(result.offsets[index]), result))
        if code:
            book.close(entry)
    return deltas


def _delta(entry: Entry, tokens: list[int], code: int, row: int, result: StepResult) -> TokenDelta:
    finish, sampling = Finish(code), entry.request.sampling
    first = entry.num_reported == 0
    entry.num_reported += len(tokens)
    logprobs = None
    if sampling.logprobs is not None and result.logprobs is not None:
        logprobs = [result.logprobs.row(row + j, token, sampling.logprobs) for j, token in enumerate(tokens)]
    return TokenDelta(
        request_id=entry.request.request_id,
        token_ids=tokens,
        logprobs=logprobs,
        prompt_logprobs=entry.scores if first else None,
        num_cached_tokens=entry.num_cached_tokens,
        finish_reason=_REASONS.get(finish),
        stop_token=tokens[-1] if finish == Finish.STOP and tokens else None,
    )


def end_delta(entry: Entry, reason: str, error: str | None = None, error_field: str | None = None) -> TokenDelta:
    """The last delta of a request that ends without new tokens."""
    return TokenDelta(
        request_id=entry.request.request_id,
        num_cached_tokens=entry.num_cached_tokens,
        finish_reason=reason,
        error=error,
        error_field=error_field,
    )
