"""What HTTP costs: ``headrace serve`` against its own engine, and beside other engines' servers, on the same requests.

Not part of CI. Starts every server, and in this process a client of an engine process of our server's settings; then
each gets one round of requests in turn, ``--rounds`` times, so that a machine that slows down slows all. The first
round warms up. Others rest while one works. Prints per contender tokens a second, TTFT and time between tokens as
this client sees them (from one event of a stream to the next, undivided, as vLLM's benchmark has it), and the seconds
of processor that the server spends on a token: the process that speaks HTTP, where that is one of its own, and all of
it. Prompts are drawn words, since not every server takes token ids. Decides nothing.

    python scripts/edge_overhead.py --concurrency 16 --threads 2
    python scripts/edge_overhead.py --peers vllm,llama-cpp-python --cache ~/.cache/peers --table docs/edge.md
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from edge_servers import CONTEXT, Recipe, ServerProcess, own, peers
from headrace.api.async_llm import AsyncLLM
from headrace.cli.bench_delivery import TableFlags
from headrace.cli.flags import parse_size
from headrace.contract.request import SamplingParams
from headrace.contract.result import TokenDelta
from headrace.lab.bench.load.client import ask
from headrace.lab.bench.load.figures import Outcome, percentile
from headrace.lab.bench.peers_bench import MODEL
from headrace.lab.bench.report import Report
from headrace.lab.bench.stats import spread

WAIT_S = 600.0
WORDS = (
    *("time", "way", "day", "man", "thing", "world", "life", "hand", "part", "child"),
    *("eye", "place", "work", "week", "case", "point", "company", "number", "group", "fact"),
)
ENGINE = "our engine, no server"
UNITS = {
    "throughput": ("tok/s", 1.0),
    "TTFT p50": ("ms", 1e3),
    "TTFT p99": ("ms", 1e3),
    "between tokens p50": ("ms", 1e3),
    "between tokens p99": ("ms", 1e3),
    "CPU per token, HTTP's process": ("us", 1e6),
    "CPU per token, all processes": ("us", 1e6),
}
Send = Callable[[str, int], Awaitable[Outcome]]
Figures = dict[str, float]


@dataclass
class Contender:
    """``server`` None: the engine itself. ``rounds``: figures in seconds, one mapping per round."""

    name: str
    send: Send
    server: ServerProcess | None = None
    rounds: list[Figures] = field(default_factory=list)

    def measure(self, prompts: Sequence[str], tokens: int, concurrency: int) -> Figures:
        if self.server is None:
            return asyncio.run(one_round(self.send, prompts, tokens, concurrency))
        self.server.wake()
        before = self.server.cpu_s()
        figures = asyncio.run(one_round(self.send, prompts, tokens, concurrency))
        after, count = self.server.cpu_s(), len(prompts) * tokens
        self.server.rest()
        if self.server.recipe.splits:
            figures["CPU per token, HTTP's process"] = (after[0] - before[0]) / count
        return figures | {"CPU per token, all processes": (after[1] - before[1]) / count}


def server_contender(recipe: Recipe, log: Path) -> Contender:
    server = ServerProcess(recipe, log)
    return Contender(recipe.name, lambda prompt, tokens: ask(server.target, prompt, tokens), server)


async def ask_engine(llm: AsyncLLM, prompt: str, tokens: int) -> Outcome:
    """The engine's own times: when its client hands the tokens over, before any text is made of them."""
    wanted = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    outcome, loop, over = Outcome(perf_counter(), 0), asyncio.get_running_loop(), asyncio.Event()

    def take(delta: TokenDelta) -> None:
        if delta.token_ids:
            outcome.times.append((perf_counter(), len(delta.token_ids)))
        if delta.finish_reason is not None:
            outcome.error = delta.error
            loop.call_soon_threadsafe(over.set)

    [request] = llm.prepare(prompt, wanted).requests
    llm.client.submit(request, take)
    async with asyncio.timeout(WAIT_S):
        await over.wait()
    return outcome


async def one_round(send: Send, prompts: Sequence[str], tokens: int, concurrency: int) -> Figures:
    places, began = asyncio.Semaphore(concurrency), perf_counter()

    async def one(prompt: str) -> Outcome:
        async with places:
            return await send(prompt, tokens)

    outcomes = await asyncio.gather(*map(one, prompts))
    elapsed_s = perf_counter() - began
    if wrong := [outcome.error for outcome in outcomes if outcome.error is not None]:
        raise SystemExit(f"a request failed: {wrong[0]}")
    if short := [outcome.tokens for outcome in outcomes if outcome.tokens < 0.9 * tokens]:
        raise SystemExit(f"answers end early: {short[0]} tokens of {tokens}")
    gaps = [gap for outcome in outcomes for gap in outcome.itl_s()]
    first = [outcome.ttft_s for outcome in outcomes]
    return {
        "throughput": sum(outcome.tokens for outcome in outcomes) / elapsed_s,
        "TTFT p50": percentile(first, 0.5),
        "TTFT p99": percentile(first, 0.99),
        "between tokens p50": percentile(gaps, 0.5),
        "between tokens p99": percentile(gaps, 0.99),
    }


def prompts_of(number: int, count: int, words: int) -> list[str]:
    """Nothing of a prompt is in a cache: it begins with words of its own."""
    drawn = random.Random(f"edge {number}")
    return [" ".join(drawn.choices(WORDS, k=words)) for _ in range(count)]


def play(contenders: Sequence[Contender], given: argparse.Namespace) -> None:
    for number in range(given.rounds + 1):
        prompts = prompts_of(number, given.requests, given.prompt)
        for contender in contenders:
            figures = contender.measure(prompts, given.answer, given.concurrency)
            if number:  # the first round warms up
                contender.rounds.append(figures)
            print(f"round {number} of {contender.name}: {figures['throughput']:.0f} tok/s", file=sys.stderr)


def told(contenders: Sequence[Contender], given: argparse.Namespace) -> Report:
    names = ("concurrency", "requests", "prompt", "answer", "threads", "rounds")
    report = Report("edge", {"model": MODEL, **{name: getattr(given, name) for name in names}})
    for contender in contenders:
        for what, (unit, factor) in UNITS.items():
            if what in contender.rounds[0]:
                values = spread([figures[what] for figures in contender.rounds]).scaled(factor)
                report.add(f"{contender.name}: {what}", unit, values)
    add_ratios(report, contenders)
    return report.finish()


def add_ratios(report: Report, contenders: Sequence[Contender]) -> None:
    """Of neighbouring rounds: the server's times over the engine's own; rates turned over. 1 costs nothing."""
    [served] = [one for one in contenders if one.name == "headrace"]
    [plain] = [one for one in contenders if one.name == ENGINE]
    for what in plain.rounds[0]:
        ratios = [a[what] / b[what] for a, b in zip(served.rounds, plain.rounds)]
        turned = [1 / ratio for ratio in ratios] if what == "throughput" else ratios
        report.add(f"headrace: {what}, factor that the server costs", "x", spread(turned))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=32, help="of a round")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=64, help="words, about as many tokens")
    parser.add_argument("--answer", type=int, default=64, help="tokens")
    parser.add_argument("--kv-memory", default="256MiB", help="of each of our engines")
    parser.add_argument("--threads", type=int, default=2, help="of each engine, working in turn")
    parser.add_argument("--peers", default="", help="vllm, llama-cpp-python, or both, separated by a comma")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "headrace-peers", help="of bench peers")
    parser.add_argument("--table", type=Path, help="document whose table between the edge markers is written anew")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    given = parser.parse_args()
    if given.prompt * 2 + given.answer > CONTEXT:
        parser.error(f"prompts and answers must fit into {CONTEXT} tokens")
    return given


def main() -> int:
    given = parse()
    table = TableFlags(None if given.table is None else [given.table])
    table.check("edge")
    given.cache.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        memory = parse_size("kv_memory", given.kv_memory)
        settings = {"kv_memory": memory, "num_threads": given.threads, "max_model_len": CONTEXT, "kv_store": "off"}
        llm = stack.enter_context(closing(AsyncLLM(MODEL, own_process=True, **settings)))
        contenders = [Contender(ENGINE, lambda prompt, tokens: ask_engine(llm, prompt, tokens))]
        names = [name for name in given.peers.split(",") if name]
        bans = llm.tokenizer.eos_ids if llm.tokenizer is not None else ()
        recipes = peers(names, given.cache, given.threads, lambda words: print(words, file=sys.stderr), bans)
        for recipe in (own(given.threads, given.kv_memory), *recipes):
            print(f"starting {recipe.name}", file=sys.stderr)
            contender = server_contender(recipe, given.cache / f"edge-{recipe.name.replace(' ', '-')}.log")
            assert contender.server is not None
            stack.callback(contender.server.close)
            contenders.append(contender)
            contender.server.rest()
        play(contenders, given)
    plain = told(contenders, given).plain()
    table.write(plain)
    if given.out is not None:
        given.out.write_text(json.dumps(plain, indent=1) + "\n")
    print(json.dumps(plain))
    return 0


if __name__ == "__main__":
    sys.exit(main())
