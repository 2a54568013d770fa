"""What HTTP costs: ``headrace serve`` against its own engine, asked without a server, on the same requests.

Not part of CI. Starts a server and, in this process, a client of an engine process of the same settings; then lets one
round of requests run on each in turn, ``--rounds`` times, so that a machine that slows down slows both. One side rests
while the other works; the measuring client's own work counts with the server's. Prints one JSON object: per side the
medians over the rounds of tokens a second, TTFT and time between tokens; ``ratio``, the median of the ratios of
neighbouring rounds (1 costs nothing; above 1 is more, for times and for the inverse of the rate); and the seconds of
CPU that the server's own process spends on a token. Decides nothing.
``python scripts/edge_overhead.py --concurrency 16 --threads 2``
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

from headrace.api.async_llm import AsyncLLM
from headrace.cli.flags import parse_size
from headrace.contract.request import SamplingParams
from headrace.contract.result import TokenDelta
from headrace.lab.bench.load.arrivals import Shot, Synthetic
from headrace.lab.bench.load.client import Target, ask
from headrace.lab.bench.load.figures import Outcome, percentile

WAIT_S = 600.0
Send = Callable[[Shot], Awaitable[Outcome]]
Figures = dict[str, float]


async def ask_engine(llm: AsyncLLM, shot: Shot) -> Outcome:
    """The engine's own times: when its client hands the tokens over, before any text is made of them."""
    wanted = SamplingParams(max_tokens=shot.max_tokens, temperature=0.0, ignore_eos=True)
    outcome, loop, over = Outcome(perf_counter(), len(shot.prompt)), asyncio.get_running_loop(), asyncio.Event()

    def take(delta: TokenDelta) -> None:
        if delta.token_ids:
            outcome.times.append((perf_counter(), len(delta.token_ids)))
        if delta.finish_reason is not None:
            outcome.error = delta.error
            loop.call_soon_threadsafe(over.set)

    [request] = llm.prepare({"prompt_token_ids": shot.prompt}, wanted).requests
    llm.client.submit(request, take)
    async with asyncio.timeout(WAIT_S):
        await over.wait()
    return outcome


async def one_round(send: Send, shots: Sequence[Shot], concurrency: int) -> Figures:
    places, began = asyncio.Semaphore(concurrency), perf_counter()

    async def one(shot: Shot) -> Outcome:
        async with places:
            return await send(shot)

    outcomes = await asyncio.gather(*map(one, shots))
    elapsed_s = perf_counter() - began
    if wrong := [outcome.error for outcome in outcomes if outcome.error is not None]:
        raise SystemExit(f"a request failed: {wrong[0]}")
    gaps = [gap for outcome in outcomes for gap in outcome.itl_s()]
    first = [outcome.ttft_s for outcome in outcomes]
    return {
        "tokens_per_s": sum(outcome.tokens for outcome in outcomes) / elapsed_s,
        "ttft_p50_s": percentile(first, 0.5),
        "ttft_p99_s": percentile(first, 0.99),
        "itl_p50_s": percentile(gaps, 0.5),
        "itl_p99_s": percentile(gaps, 0.99),
    }


def cost(served: Figures, plain: Figures) -> Figures:
    """What the server adds, as ratios of times; the rate's is turned over."""
    return {
        name: plain[name] / served[name] if name == "tokens_per_s" else served[name] / plain[name] for name in plain
    }


def medians(rounds: Sequence[Figures]) -> Figures:
    return {name: median(one[name] for one in rounds) for name in rounds[0]}


def cpu_s(pid: int) -> float:
    """Of the process alone, without the engine below it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start(rest: list[str]) -> tuple[subprocess.Popen[str], str]:
    server = subprocess.Popen(
        [sys.executable, "-m", "headrace", "serve", "--port", "0", *rest], stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    for line in server.stderr:
        if " on http" in line:
            threading.Thread(target=server.stderr.read, daemon=True).start()
            return server, line.rsplit(" ", 1)[1].strip()
    raise SystemExit("the server did not start")


async def compare(url: str, pid: int, llm: AsyncLLM, given: argparse.Namespace) -> dict[str, object]:
    target = Target(url, counts_ids=True)
    served, plain, spent_s = list[Figures](), list[Figures](), 0.0
    for number in range(given.rounds + 1):
        shots = Synthetic(given.requests, given.prompt, given.answer, seed=number).shots()
        before_s = cpu_s(pid)
        one = await one_round(lambda shot: ask(target, shot.prompt, shot.max_tokens), shots, given.concurrency)
        other = await one_round(lambda shot: ask_engine(llm, shot), shots, given.concurrency)
        if number:  # the first round warms both
            spent_s += cpu_s(pid) - before_s
            served.append(one)
            plain.append(other)
    ratio = medians([cost(one, other) for one, other in zip(served, plain)])
    tokens = given.rounds * given.requests * given.answer
    told = {"served": medians(served), "engine": medians(plain), "ratio": ratio}
    return told | {"server_cpu_s_per_token": spent_s / tokens, "rounds": given.rounds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=32, help="of a round")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=64, help="tokens")
    parser.add_argument("--answer", type=int, default=64, help="tokens")
    parser.add_argument("--kv-memory", default="256MiB", help="of each of the two engines")
    parser.add_argument("--threads", type=int, default=None, help="of each of the two engines, working in turn")
    given = parser.parse_args()
    flags = ["--kv-memory", given.kv_memory, *(["--threads", str(given.threads)] if given.threads else [])]
    threads = {"num_threads": given.threads} if given.threads else {}
    server, url = start(flags)
    try:
        with_engine = AsyncLLM(own_process=True, kv_memory=parse_size("kv_memory", given.kv_memory), **threads)
        try:
            told = asyncio.run(compare(url, server.pid, with_engine, given))
        finally:
            with_engine.close()
    finally:
        server.terminate()
        server.wait(60)
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
