"""What speculation brings: the same requests with and without it, in turns, and whether the tokens are the same.

A ratio is of two runs that stand beside each other, so that whatever else the machine does weighs on both.
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

from .acceptance import add_acceptance
from .engine_runs import greedy, without_store
from .engine_settings import engine_settings
from .progress import now
from .report import Curve, Report
from .speculation_prompts import STORY, copy_code, quote_summary
from .stats import spread

STREAMS = (1, 8)
WORKLOADS = ("copy code", "quote and summarise", "chat")


@dataclass(frozen=True, slots=True)
class Sample:
    """One run: seconds, every request's ids, drafts verified and accepted, steps."""

    seconds: float
    token_ids: list[list[int]]
    verified: int
    accepted: int
    steps: int


def bench_speculation(
    config: EngineConfig,
    streams: Sequence[int] = STREAMS,
    tokens: int = 256,
    repeats: int = 5,
    names: Sequence[str] = ("",),
) -> Report:
    """Tokens per second as a ratio to no speculation, per workload and number of streams. ``names``: parts of the
    names of those workloads that are wanted."""
    if config.speculation.speculation == "none":
        raise ConfigError("speculation", "names what to measure: choose a method")
    wanted = [name for name in WORKLOADS if any(part in name for part in names)]
    if not wanted:
        raise ConfigError("workloads", f"must be of {', '.join(WORKLOADS)}")
    plain = dataclasses.replace(config, speculation=dataclasses.replace(config.speculation, speculation="none"))
    method = config.speculation.speculation
    settings = {"speculation": method, "max_drafts": config.speculation.max_drafts, "tokens": tokens}
    report = Report("speculation", settings | {"repeats": repeats})
    with ExitStack() as stack:
        without, with_drafts = (stack.enter_context(LLM(config=without_store(c))) for c in (plain, config))
        report.settings |= engine_settings(config) | {"model": with_drafts.model_name}
        prompts = workloads(with_drafts)
        for name, prompt in ((name, prompts[name]) for name in wanted):
            if len(prompt) + tokens > with_drafts.max_model_len:
                raise ConfigError("tokens", f"{len(prompt)} of the prompt and {tokens} exceed the context")
            points = [_measure(report, name, prompt, n, tokens, repeats, without, with_drafts) for n in streams]
            report.curves.append(Curve(name, "streams", "times plain decoding", points))
    add_acceptance(report, config, prompts["chat"], tokens, repeats)
    return report.finish()


def workloads(llm: LLM) -> dict[str, list[int]]:
    """Token ids per workload."""
    tokenizer = llm.tokenizer
    if tokenizer is None:
        raise ConfigError("model", "has no tokenizer: the prompts of this bench are texts")
    texts = dict(zip(WORKLOADS, (copy_code(), quote_summary())))
    ids = {name: llm.prepare(text).requests[0].prompt_token_ids for name, text in texts.items()}
    try:
        chat = llm.encode_chat([{"role": "user", "content": STORY}])
    except HeadraceError:  # a model without a chat template continues the request itself
        chat = llm.prepare(STORY).requests[0].prompt_token_ids
    return ids | {WORKLOADS[-1]: chat}


def _measure(
    report: Report, name: str, prompt: list[int], streams: int, tokens: int, repeats: int, without: LLM, drafts: LLM
) -> tuple[float, float]:
    what = f"{name}, {streams} stream{'s' if streams > 1 else ''}"
    now(what)
    for llm in (without, drafts):  # fills the prefix caches
        run_once(llm, prompt, streams, tokens)
    pairs = []
    for turn in range(repeats):
        first, second = (without, drafts) if turn % 2 == 0 else (drafts, without)
        runs = {id(llm): run_once(llm, prompt, streams, tokens) for llm in (first, second)}
        pairs.append((runs[id(without)], runs[id(drafts)]))
    if any(plain.token_ids != drafted.token_ids for plain, drafted in pairs):
        raise HeadraceError(f"{name}: speculation changed a greedy token")
    ratio = spread([plain.seconds / drafted.seconds for plain, drafted in pairs])
    last = pairs[-1][1]
    share = last.accepted / last.verified if last.verified else 0.0
    note = f"{last.accepted} of {last.verified} drafts accepted ({share:.0%}), {last.steps} steps; same tokens"
    report.add(what, "x", ratio, note=note)
    report.add(f"{what}: rate", "tok/s", spread([streams * tokens / drafted.seconds for _, drafted in pairs]))
    return float(streams), ratio.median


def run_once(llm: LLM, prompt: list[int], streams: int, tokens: int) -> Sample:
    """All streams at once, greedily, each for exactly ``tokens`` tokens."""
    prepared = [llm.prepare({"prompt_token_ids": prompt}, greedy(tokens)) for _ in range(streams)]
    before, start, ids = llm.engine.stats, perf_counter(), {}
    for news in llm.feed(prepared):
        ids.update({o.request_id: list(o.outputs[0].token_ids) for o in news if o.finished})
    seconds, after = perf_counter() - start, llm.engine.stats
    return Sample(
        seconds,
        [ids[p.request_id] for p in prepared],
        after.verified_drafts - before.verified_drafts,
        after.accepted_drafts - before.accepted_drafts,
        after.steps - before.steps,
    )
