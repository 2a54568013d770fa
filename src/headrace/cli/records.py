"""Finished outputs as plain values for JSON: one spelling for ``run``, ``chat`` and ``generate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.api.output import CompletionOutput, Logprob, RequestOutput


def completion(output: RequestOutput) -> dict[str, Any]:
    """The first choice's fields, ``usage``, and with ``n`` above 1 all choices under ``choices``."""
    record = choice(output.outputs[0])
    if len(output.outputs) > 1:
        record["choices"] = [{"index": c.index, **choice(c)} for c in output.outputs]
    if output.prompt_logprobs is not None:
        record["prompt_logprobs"] = [None if row is None else logprob_row(row) for row in output.prompt_logprobs]
    record["usage"] = usage(output)
    return record


def choice(output: CompletionOutput) -> dict[str, Any]:
    """One choice. One that was cut short has the finish reason ``abort``."""
    record: dict[str, Any] = {
        "text": output.text,
        "token_ids": output.token_ids,
        "finish_reason": output.finish_reason or "abort",
        "stop_reason": output.stop_reason,
    }
    if output.logprobs is not None:
        record["logprobs"] = [logprob_row(row) for row in output.logprobs]
    return record


def logprob_row(row: dict[int, Logprob]) -> list[dict[str, Any]]:
    """The chosen id first, then the likeliest ones."""
    return [
        {"token_id": token, "logprob": entry.logprob, "rank": entry.rank, "token": entry.decoded_token}
        for token, entry in row.items()
    ]


def usage(output: RequestOutput) -> dict[str, int]:
    """Token counts; ``cached_tokens`` of the prompt were not computed again."""
    return {
        "prompt_tokens": len(output.prompt_token_ids),
        "cached_tokens": output.num_cached_tokens,
        "completion_tokens": sum(len(c.token_ids) for c in output.outputs),
    }
