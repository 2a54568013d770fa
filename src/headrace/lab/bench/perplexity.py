"""Perplexity of a model on one pinned text, so that nobody wins a race by rounding harder.

The text is cut into windows of 1,024 tokens that do not overlap; in each, every token but the first is predicted from
those before it. Perplexity is exp of the mean negative log-likelihood (natural logarithm) over all predicted tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.api.llm import LLM
from headrace.config import EngineConfig
from headrace.contract.errors import ConfigError
from headrace.contract.request import SamplingParams

from .corpus import ALICE, corpus_text
from .engine_runs import without_store
from .engine_settings import engine_settings
from .progress import now
from .report import Curve, Report
from .stats import spread

WINDOW = 1024
NUM_WINDOWS = 16


def windows_of(ids: Sequence[int], window: int, count: int) -> list[list[int]]:
    """The first ``count`` whole windows. Raises ConfigError when there are none."""
    whole = [list(ids[at : at + window]) for at in range(0, len(ids) - window + 1, window)]
    if not whole or window < 2:
        raise ConfigError("window", f"the text has {len(ids)} tokens; a window needs 2 to that many, got {window}")
    return whole[:count]


def text_windows(llm: LLM, window: int, count: int, offline: bool = False) -> list[list[int]]:
    """Windows of the pinned text in this model's tokens."""
    if llm.tokenizer is None:
        raise ConfigError("model", "has no tokenizer, so a text cannot be scored")
    prepared = llm.tokenizer.encode(corpus_text(offline=offline))
    return windows_of(prepared, window, count)


def perplexity(sums: Sequence[float], num_predicted: int) -> float:
    """From sums of log-likelihoods and the number of tokens they cover."""
    return math.exp(-sum(sums) / num_predicted)


def score_windows(llm: LLM, windows: Sequence[list[int]]) -> list[float]:
    """Sum of the log-likelihoods of each window's tokens but the first."""
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    sums = []
    for number, ids in enumerate(windows, 1):
        now(f"window {number} of {len(windows)}")
        (output,) = llm.generate([{"prompt_token_ids": ids}], params)
        entries = output.prompt_logprobs or []
        if len(entries) != len(ids):
            raise ConfigError("prompt_logprobs", f"{len(entries)} came back for {len(ids)} tokens")
        sums.append(sum(entry[token].logprob for token, entry in zip(ids[1:], entries[1:]) if entry is not None))
    return sums


def bench_perplexity(config: EngineConfig, window: int = WINDOW, count: int = NUM_WINDOWS) -> Report:
    """One figure over all windows; the spread is that of single windows."""
    report = Report("perplexity", {"window": window, "text": ALICE.source})
    now(f"loading {config.model.model}")
    with LLM(config=without_store(config)) as llm:
        report.settings |= engine_settings(config) | {"model": llm.model_name}
        windows = text_windows(llm, window, count, config.model.offline)
        sums = score_windows(llm, windows)
    num_predicted = sum(len(ids) - 1 for ids in windows)
    each = [perplexity([total], len(ids) - 1) for total, ids in zip(sums, windows)]
    fewer = f"the text has no more than these of the {count} that were asked for" if len(windows) < count else ""
    mean = spread([perplexity(sums, num_predicted)])
    report.add(f"perplexity, {len(windows)} windows of {window}", "", mean, note=fewer)
    report.add("perplexity of single windows", "", spread(each))
    points = [(float(i), value) for i, value in enumerate(each)]
    report.curves.append(Curve("Perplexity by window", "window", "perplexity", points))
    return report.finish()
