"""Sends the shots, open-loop at their times or closed-loop with so many at once; a report says what came back."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict, replace
from time import perf_counter
from typing import Any

from headrace.contract.errors import ConfigError

from ..report import Curve, Report
from ..stats import Spread
from .arrivals import Shot, Synthetic, Trace
from .client import ServerError, Target, ask, first_model
from .figures import Outcome, Slo, percentile

CURVE_POINTS = 100
SHARES = (0.5, 0.9, 0.99)
SEEN = "the server knew beginnings of these prompts, perhaps from a run before; another --seed draws others"


def bench_serve(target: Target, load: Synthetic | Trace, concurrency: int | None, slo: Slo) -> Report:
    """``concurrency``: most requests at once; None: no bound (open loop). Raises ConfigError, ServerError."""
    target.check()
    shots = load.shots()
    if concurrency is None and any(shot.at_s is None for shot in shots):
        raise ConfigError("concurrency", "is needed where no rate and no trace says when to send")
    return asyncio.run(_bench(target, load, shots, concurrency, slo))


async def _bench(
    target: Target, load: Synthetic | Trace, shots: list[Shot], concurrency: int | None, slo: Slo
) -> Report:
    target = replace(target, model=target.model or await first_model(target))
    warm = await ask(target, shots[0].prompt[:8], 2)
    if warm.error is not None:
        raise ServerError(f"the first request failed: {warm.error}")
    began = perf_counter()
    outcomes = await send(target, shots, concurrency)
    elapsed_s = perf_counter() - began
    settings: dict[str, Any] = {
        "url": target.url,
        "model": target.model,
        "concurrency": concurrency or "open",
        "load": _words(load, len(shots)),
        "slo": asdict(slo),
        "latest_send_s": round(max(one.late_s for one in outcomes), 4),
        "sent": len(outcomes),
        "answered": sum(one.error is None for one in outcomes),
    }
    report = Report("serve", settings)
    fill(report, outcomes, elapsed_s, slo)
    return report.finish()


async def send(target: Target, shots: Sequence[Shot], concurrency: int | None) -> list[Outcome]:
    """All outcomes in the order of the shots. What waits for a place is sent late, and says so."""
    places: AbstractAsyncContextManager[None] = asyncio.Semaphore(concurrency) if concurrency else nullcontext()
    began = perf_counter()

    async def one(shot: Shot) -> Outcome:
        async with places:
            outcome = await ask(target, shot.prompt, shot.max_tokens)
        outcome.due_s = None if shot.at_s is None else began + shot.at_s
        return outcome

    tasks = []
    for shot in shots:
        if shot.at_s is not None:
            await asyncio.sleep(max(0.0, began + shot.at_s - perf_counter()))
        tasks.append(asyncio.create_task(one(shot)))
    return list(await asyncio.gather(*tasks))


def fill(report: Report, outcomes: Sequence[Outcome], elapsed_s: float, slo: Slo) -> None:
    """Rows and curves. Requests that failed count as failed and nowhere else."""
    good = [one for one in outcomes if one.error is None]
    errors = sorted({one.error for one in outcomes if one.error is not None})
    tokens = sum(one.tokens for one in good)
    prompt_tokens = sum(one.num_prompt for one in good)
    _total(report, "requests", "1/s", len(good) / elapsed_s)
    _total(report, "output tokens", "tok/s", tokens / elapsed_s)
    _total(report, "prompt and output tokens", "tok/s", (tokens + prompt_tokens) / elapsed_s)
    cached = sum(one.num_cached for one in good)
    _total(report, "prompt tokens found cached", "share", cached / max(1, prompt_tokens), SEEN if cached else "")
    _total(report, "goodput", "1/s", sum(map(slo.kept, good)) / elapsed_s)
    _total(report, "failed requests", "", len(outcomes) - len(good), note="; ".join(errors)[:300])
    measured = {
        "TTFT": [one.ttft_s for one in good],
        "ITL": [gap for one in good for gap in one.itl_s()],
        "TPOT": [one.tpot_s for one in good if one.tpot_s is not None],
        "E2E": [one.e2e_s for one in good],
        "sent late": [one.late_s for one in good if one.due_s is not None],
    }
    for name, values in measured.items():
        if values:
            _add_times(report, name, values)
    for name in ("TTFT", "ITL") if good else ():
        report.curves.append(_distribution(name, measured[name]))


def _add_times(report: Report, name: str, values: Sequence[float]) -> None:
    """Mean, standard deviation (of just these values) and percentiles of ``values``, in seconds."""
    found = {"mean": statistics.fmean(values), "std": statistics.pstdev(values)}
    found |= {f"p{share * 100:g}": percentile(values, share) for share in SHARES}
    for what, value in found.items():
        low, high = (value, value) if what == "std" else (min(values), max(values))
        report.add(f"{name} {what}", "ms", Spread(value, low, high, len(values)).scaled(1000))


def _total(report: Report, what: str, unit: str, value: float, note: str = "") -> None:
    report.add(what, unit, Spread(value, value, value, 1), note=note)


def _distribution(name: str, values: Sequence[float]) -> Curve:
    if not values:
        return Curve(name, "ms", "share", [])
    points = [(percentile(values, i / CURVE_POINTS) * 1000, i / CURVE_POINTS) for i in range(CURVE_POINTS + 1)]
    return Curve(f"{name}, share of requests" if name == "TTFT" else f"{name}, share of events", "ms", "share", points)


def _words(load: Synthetic | Trace, count: int) -> str:
    if isinstance(load, Trace):
        return f"{count} requests of {load.path.name} at {load.speed:g} times its speed"
    when = f"{load.rate:g} a second, burstiness {load.burstiness:g}" if load.rate else "as places become free"
    return f"{load.count} requests of {load.length} tokens, {load.max_tokens} to generate, {when}"
