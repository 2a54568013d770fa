"""Runs samples through the engine's public front and turns outputs into entries. All owned samples run together."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence

from headrace.api.llm import LLM
from headrace.api.output import Logprob, RequestOutput
from headrace.contract.errors import WorkerError

from .baseline import Entry
from .suite import Sample


def measure(llm: LLM, samples: Sequence[Sample]) -> dict[str, Entry]:
    """Entries by name. Raises WorkerError when a sample failed: a partial answer is none."""
    prompts = [{"prompt_token_ids": list(sample.ids)} for sample in samples]
    outputs = llm.generate(prompts, [sample.params for sample in samples])
    return {sample.name: _entry(sample, output) for sample, output in zip(samples, outputs)}


def _entry(sample: Sample, output: RequestOutput) -> Entry:
    [choice] = output.outputs
    if choice.finish_reason != "length":
        raise WorkerError(
            f"{sample.name} ended with {choice.finish_reason}: {choice.error or 'not all its tokens came'}"
        )
    drawn = [row[token].logprob for token, row in zip(choice.token_ids, choice.logprobs or [])]
    scored = _scored(sample.ids, output.prompt_logprobs) if output.prompt_logprobs else []
    nll = -math.fsum(scored)
    return Entry(
        index=sample.index,
        group=sample.group,
        inputs=sample.inputs,
        ids=list(choice.token_ids),
        logprobs=[value.hex() for value in drawn],
        bits=hashlib.sha256(struct.pack(f"<{len(scored) + len(drawn)}d", *scored, *drawn)).hexdigest()[:16],
        nll=nll.hex() if scored else None,
        perplexity=round(math.exp(nll / len(scored)), 6) if scored else None,
    )


def _scored(ids: Sequence[int], rows: Sequence[dict[int, Logprob] | None]) -> list[float]:
    return [row[token].logprob for token, row in zip(ids[1:], rows[1:]) if row is not None]
