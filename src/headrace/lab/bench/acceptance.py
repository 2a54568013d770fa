"""What the exact rule of acceptance loses against rejection sampling, where a model drafts and answers are drawn.

Both rules see the same requests at temperature 1. Time is not taken here: both emit what they emit.
"""

from __future__ import annotations

import dataclasses

from headrace.api.llm import LLM
from headrace.config import EngineConfig
from headrace.contract.request import SamplingParams

from .engine_runs import without_store
from .report import Report
from .stats import spread

MODEL_DRAFTERS = ("draft_model", "draft_heads", "self")
STREAMS = 4


def add_acceptance(report: Report, config: EngineConfig, prompt: list[int], tokens: int, repeats: int) -> None:
    """Rows with the share of drafts accepted under either rule; every draft is verified. Nothing where no model
    drafts: the two rules are one there.

    Measured without the deterministic mode, which knows the exact rule only and would put it in the other's place."""
    if config.speculation.speculation not in MODEL_DRAFTERS:
        return
    shares: dict[str, list[float]] = {}
    free = dataclasses.replace(config.runtime, deterministic=False)
    for rule in ("exact", "rejection"):
        wanted = dataclasses.replace(config.speculation, acceptance=rule, speculation_guard=False)
        measured = dataclasses.replace(config, speculation=wanted, runtime=free)
        with LLM(config=without_store(measured)) as llm:
            shares[rule] = [_share(llm, prompt, tokens, turn) for turn in range(repeats)]
        report.add(f"drafts accepted, {rule}", "%", spread(shares[rule]), note="temperature 1")
    ratios = [exact / rejection for exact, rejection in zip(shares["exact"], shares["rejection"]) if rejection]
    if ratios:
        report.add("drafts accepted, exact over rejection", "x", spread(ratios), note="same seeds")


def _share(llm: LLM, prompt: list[int], tokens: int, turn: int) -> float:
    """Per cent of the drafts verified."""
    before = llm.stats
    params = [
        SamplingParams(max_tokens=tokens, temperature=1.0, seed=turn * STREAMS + i, ignore_eos=True)
        for i in range(STREAMS)
    ]
    llm.generate([{"prompt_token_ids": prompt}] * STREAMS, params)
    after = llm.stats
    verified = after.verified_drafts - before.verified_drafts
    return 100.0 * (after.accepted_drafts - before.accepted_drafts) / max(1, verified)
