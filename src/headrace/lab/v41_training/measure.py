"""How well the small member was trained, measured through the serving path: loss on held-out text beside what counting
gives, and how many of its own drafts it accepts. Trains nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.api.llm import LLM
from headrace.contract.request import SamplingParams

from .text import in_order

SHRINK = 100.0  # tokens of unigram belief that a bigram's count starts with: near the best on the held-out text


@dataclass(frozen=True, slots=True)
class Loss:
    """Nats per token, and what they are in bits per byte of the text."""

    nats: float
    bits_per_byte: float

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """``verified`` drafts, ``accepted`` of them, in ``steps`` steps of ``tokens`` tokens; all streams together."""

    verified: int
    accepted: int
    tokens: int
    steps: int


def counted_losses(training: Sequence[Tensor], rows: Tensor, vocab: int, bytes_per_token: float) -> dict[str, Loss]:
    """Of unigram and interpolated bigram counts of the training texts, on ``rows`` (n, length + 1)."""
    seen = torch.cat(list(training))
    single = torch.bincount(seen, minlength=vocab).double() + 0.1
    single /= single.sum()
    pairs = torch.zeros(vocab, vocab, dtype=torch.float64)
    for text in training:
        pairs.index_put_((text[:-1], text[1:]), torch.ones(len(text) - 1, dtype=torch.float64), accumulate=True)
    both = (pairs + SHRINK * single) / (pairs.sum(1, keepdim=True) + SHRINK)
    before, after = rows[:, :-1].flatten(), rows[:, 1:].flatten()
    return {
        "unigram": _loss(-single[after].log().mean().item(), bytes_per_token),
        "bigram": _loss(-both[before, after].log().mean().item(), bytes_per_token),
    }


def _loss(nats: float, bytes_per_token: float) -> Loss:
    return Loss(nats, nats / math.log(2) / bytes_per_token)


def held_out_loss(llm: LLM, rows: Tensor, bytes_per_token: float) -> Loss:
    """The model's, by prompt logprobs; every row stands alone behind a begin."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    total, count = 0.0, 0
    for output in llm.generate([{"prompt_token_ids": row.tolist()} for row in rows], params):
        assert output.prompt_logprobs is not None
        for token, entry in zip(output.prompt_token_ids, output.prompt_logprobs):
            if entry is not None:
                total, count = total - entry[token].logprob, count + 1
    return _loss(total / count, bytes_per_token)


def acceptance(llm: LLM, prompts: Sequence[Sequence[int]], tokens: int, temperature: float) -> Acceptance:
    """Goes on from ``prompts`` with ``tokens`` tokens each; the engine must speculate."""
    before = llm.stats
    start = (before.verified_drafts, before.accepted_drafts, before.steps)
    params = SamplingParams(temperature=temperature, max_tokens=tokens, ignore_eos=True, seed=1)
    outputs = llm.generate([{"prompt_token_ids": list(p)} for p in prompts], params)
    after, made = llm.stats, sum(len(o.outputs[0].token_ids) for o in outputs)
    return Acceptance(after.verified_drafts - start[0], after.accepted_drafts - start[1], made, after.steps - start[2])


def prompts_of(texts: Sequence[Tensor], length: int) -> list[list[int]]:
    """The beginnings of consecutive pieces of ``texts``."""
    return [row.tolist() for row in in_order(tuple(texts), length)[:, : length + 1]]
