"""What the deterministic mode costs: the same work without and with it, in turns, as a ratio.

The kernels are batch invariant either way, so the mode changes settings only; nil is the expected answer, and the
figure is what keeps it so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace.api.llm import LLM
from headrace.config import EngineConfig

from .acceptance import MODEL_DRAFTERS, add_acceptance
from .engine_runs import Need, run_requests
from .engine_settings import engine_settings
from .pairs import Pair, Pairs
from .progress import now
from .report import Report
from .speculation import workloads
from .workload import draw_prompts

ROWS = (1, 8)
DEPTH = 32
PROMPT = 512


def bench_determinism(
    config: EngineConfig, rows: Sequence[int] = ROWS, num_tokens: int = 128, repeats: int = 5
) -> Report:
    """Decoding with ``rows`` streams at once, and prefill of one prompt; where a model drafts, the drafts accepted by
    the rule of this mode and by rejection sampling."""
    report = Report("determinism", {"rows": list(rows), "num_tokens": num_tokens, "repeats": repeats})
    free, bound = (replace(config, runtime=replace(config.runtime, deterministic=on)) for on in (False, True))
    with Pairs(free, bound) as pairs:
        settings = engine_settings(config) | {"model": pairs.first.model_name}
        report.settings |= {
            name: value for name, value in settings.items() if name != "deterministic"
        }  # that is compared
        Need("tokens", DEPTH, num_tokens + 1).check(pairs.first.max_model_len)
        report.settings["mode"] = "; ".join(pairs.second.notes) or "the mode changed no setting"
        for m in rows:
            now(f"decode, {m} at once")
            pair = pairs.measure(lambda llm, number, m=m: _decode(llm, number, m, num_tokens), repeats)  # type: ignore[misc]
            _add(report, f"decode, {m} at once", pair)
        length = min(PROMPT, pairs.first.max_model_len - 2)
        now(f"prefill, {length} tokens")
        _add(report, f"prefill, {length} tokens", pairs.measure(lambda llm, n: _prefill(llm, n, length), repeats))
        prompt = workloads(pairs.first)["chat"] if config.speculation.speculation in MODEL_DRAFTERS else []
    add_acceptance(report, config, prompt, num_tokens, repeats)
    return report.finish()


def _decode(llm: LLM, number: int, m: int, num_tokens: int) -> float:
    return run_requests(llm, draw_prompts(m, DEPTH, f"determinism {m} {number}"), num_tokens + 1).decode_rate


def _prefill(llm: LLM, number: int, length: int) -> float:
    return length / run_requests(llm, draw_prompts(1, length, f"determinism {number}"), 1).first_s


def _add(report: Report, what: str, pair: Pair) -> None:
    report.add(what, "tok/s", pair.first)
    report.add(f"{what}, deterministic", "tok/s", pair.second)
    report.add(f"{what}, deterministic over not", "x", pair.ratio, note=pair.verdict)
