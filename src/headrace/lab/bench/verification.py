"""How many drafts are verified, and what that is worth, by number of streams: all of them in every step, against as
many as the planner thinks worth their rows, against none.

The three run in turns, so a ratio is of runs that stand beside each other. Answers are drawn (greedy ones of small
models soon repeat themselves, which every drafter guesses): counts are exact, times are the machine's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from time import perf_counter

from headrace.api.llm import LLM
from headrace.config import EngineConfig
from headrace.contract.errors import ConfigError, HeadraceError
from headrace.contract.request import SamplingParams

from .engine_runs import Need, without_store
from .engine_settings import engine_settings
from .progress import now
from .report import Report
from .speculation_prompts import ARTICLE
from .stats import spread

STREAMS = (1, 8, 32, 96)
PLAIN, FIXED, PLANNED = "plain", "fixed", "planned"
PROMPT_WORDS = 16


@dataclass(frozen=True, slots=True)
class Counted:
    """One run: seconds, tokens emitted, drafts verified and accepted."""

    seconds: float
    tokens: int
    verified: int
    accepted: int

    @property
    def sequence_steps(self) -> int:
        """Every sequence that takes part in a step gets one token of its own beside accepted drafts."""
        return self.tokens - self.accepted


def bench_verification(config: EngineConfig, streams: Sequence[int], tokens: int, repeats: int) -> Report:
    """``config`` says who drafts. Raises ConfigError where nobody does."""
    wanted = config.speculation
    if wanted.speculation == "none":
        raise ConfigError("speculation", "names whose drafts to verify: choose a method")
    settings = {"speculation": wanted.speculation, "tokens": tokens, "repeats": repeats, "temperature": 1.0}
    report = Report("verification", settings)
    with ExitStack() as stack:
        engines = {n: stack.enter_context(LLM(config=c)) for n, c in configurations(config, max(streams)).items()}
        report.settings |= engine_settings(config) | {"model": engines[PLAIN].model_name}
        for number in streams:
            add_rows(report, engines, number, tokens, repeats)
    return report.finish()


def configurations(config: EngineConfig, most: int) -> dict[str, EngineConfig]:
    """The same engine three times, with room in a step for all streams and all their drafts."""
    wanted, limits, cache = config.speculation, config.scheduler, config.cache
    rows = most * (1 + wanted.max_drafts)
    limits = dataclasses.replace(
        limits, max_seqs=max(limits.max_seqs, most), token_budget=max(limits.token_budget, rows)
    )
    cache = dataclasses.replace(cache, kv_memory_fraction=cache.kv_memory_fraction / 3)
    config = without_store(dataclasses.replace(config, scheduler=limits, cache=cache))
    methods = {
        PLAIN: dataclasses.replace(wanted, speculation="none"),
        FIXED: dataclasses.replace(wanted, speculation_guard=False),
        PLANNED: dataclasses.replace(wanted, speculation_guard=True),
    }
    return {name: dataclasses.replace(config, speculation=method) for name, method in methods.items()}


def add_rows(report: Report, engines: dict[str, LLM], streams: int, tokens: int, repeats: int) -> None:
    now(f"{streams} streams")
    prompts = prompts_for(engines[PLAIN], streams)
    Need("tokens", max(map(len, prompts)), tokens).check(engines[PLAIN].max_model_len)
    runs: dict[str, list[Counted]] = {name: [] for name in engines}
    names = list(engines)
    for turn in range(repeats + 1):
        for name in names[turn % 3 :] + names[: turn % 3]:
            done = run_once(engines[name], prompts, tokens, turn)
            if turn:  # the first one warms up, and lets the planner see how drafts fare
                runs[name].append(done)
    what = f"{streams} stream{'s' if streams > 1 else ''}"
    for name, found in runs.items():
        report.add(f"{name}: {what}: rate", "tok/s", spread([run.tokens / run.seconds for run in found]))
    for name in (FIXED, PLANNED):
        found, plain = runs[name], runs[PLAIN]
        ratios = [(mine.tokens / mine.seconds) / (base.tokens / base.seconds) for mine, base in zip(found, plain)]
        report.add(f"{name}: {what}: rate over plain", "x", spread(ratios))
        verified, lengths = zip(*((r.verified / r.sequence_steps, r.tokens / r.sequence_steps) for r in found))
        report.add(f"{name}: {what}: verified", "drafts a step of a sequence", spread(verified))
        report.add(f"{name}: {what}: emitted", "tokens a step of a sequence", spread(lengths))
        if accepted := sum(run.verified for run in found):
            share = 100.0 * sum(run.accepted for run in found) / accepted
            report.add(f"{name}: {what}: accepted", "% of drafts verified", spread([share]))


def prompts_for(llm: LLM, streams: int) -> list[list[int]]:
    """As many stretches of a text, each from another word on."""
    words = ARTICLE.split()
    starts = [number % max(1, len(words) - PROMPT_WORDS) for number in range(streams)]
    texts = [" ".join(words[at : at + PROMPT_WORDS]) for at in starts]
    return [llm.prepare(text).token_ids for text in texts]


def run_once(llm: LLM, prompts: Sequence[list[int]], tokens: int, turn: int) -> Counted:
    """All streams at once, drawn with seeds of their own, each for exactly ``tokens`` tokens."""
    params = [
        SamplingParams(max_tokens=tokens, temperature=1.0, seed=1000 * turn + i, ignore_eos=True)
        for i in range(len(prompts))
    ]
    prepared = [llm.prepare({"prompt_token_ids": ids}, one) for ids, one in zip(prompts, params)]
    before, start, made = llm.stats, perf_counter(), 0
    for news in llm.feed(prepared):
        made += sum(len(output.outputs[0].token_ids) for output in news if output.finished)
    seconds, after = perf_counter() - start, llm.stats
    if made != len(prompts) * tokens:
        raise HeadraceError(f"{made} tokens instead of {len(prompts) * tokens}: a request failed")
    drafts = after.verified_drafts - before.verified_drafts, after.accepted_drafts - before.accepted_drafts
    return Counted(seconds, made, *drafts)
