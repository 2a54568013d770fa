"""Hard use of a server: many streams at once, among them clients that vanish, dawdle or send nonsense.

Not part of CI. Starts ``headrace serve`` with what is given after ``--`` and keeps ``--streams`` clients on it for
``--seconds``. Well-behaved clients must get every token of every answer; nonsense must be refused as 4xx. At the end
no sequence may be open and no KV block in use, and memory must not grow: over the last two thirds of the run a line
through what was resident may not rise by more than 8 MiB, or 1 KiB per request of that time. (The KV pool takes its
pages as it is first used: choose one that fills early.) Then, with nobody else there, clients leave in the middle of
an answer, streamed or not: ``freed_s`` is the longest time until all they held was back. An answer may take
``--deadline`` seconds; on a machine that others use too, compare ``cpu_share`` (processors that the server got, on
average) and ``silence_s`` (the longest time in which no client at all got a token) before blaming the server. Prints
one JSON object; exits with 1 when something is wrong.
Example: ``python scripts/load_server.py --seconds 600 -- --kv-memory 128MiB --threads 2``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from headrace.lab.bench.load.client import Target, ask
from local_server import local_server

SETTLE_S = 60.0
LEAVERS = 10  # whose leaving is timed
SLACK_BYTES = 8 << 20  # of an allocator
REQUEST_BYTES = 1 << 10  # what is left of each: labels, a counter's digits; a leak is more
BAD = [
    b"{",
    b"[]",
    b'{"prompt": "x", "max_tokens": -1}',
    b'{"prompt": "", "max_tokens": 1}',
    b'{"prompt": "x", "temperature": "hot"}',
    b'{"prompt": "x", "nonsense": 1}',
    b'{"prompt": "x", "logit_bias": {"999999999": 1}}',
    b"[" * 100_000,
    b'{"prompt": ' + b'"' + b"x" * 2_000_000 + b'"}',
]


@dataclass
class Tally:
    """What happened, by kind; ``wrong`` must stay empty. ``silence_s``: the longest time without a token for all."""

    deadline_s: float = 300.0
    done: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0
    silence_s: float = 0.0
    heard_s: float = field(default_factory=time.perf_counter)

    def hear(self, times: list[tuple[float, int]]) -> None:
        """Tokens came. Those of an answer are told at its end, so this is a little more than the truth."""
        for now, _ in times:
            self.silence_s = max(self.silence_s, now - self.heard_s)
            self.heard_s = max(self.heard_s, now)


def request_bytes(port: int, body: bytes) -> bytes:
    lines = ["POST /v1/completions HTTP/1.1", f"host: 127.0.0.1:{port}", "content-type: application/json"]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body


def text_body(rng: random.Random, tokens: int, stream: bool = True) -> bytes:
    prompt = [rng.randrange(1000, 40_000) for _ in range(rng.randrange(4, 60))]
    return json.dumps({"prompt": prompt, "max_tokens": tokens, "stream": stream, "ignore_eos": True}).encode()


async def well_behaved(port: int, rng: random.Random, tally: Tally) -> None:
    tokens = rng.randrange(4, 48)
    prompt = [rng.randrange(1000, 40_000) for _ in range(rng.randrange(4, 60))]
    outcome = await ask(Target(f"http://127.0.0.1:{port}", extra={"return_token_ids": True}), prompt, tokens)
    tally.hear(outcome.times)
    tally.longest_s = max(tally.longest_s, outcome.ended_s - outcome.sent_s)
    if outcome.error is not None:
        tally.wrong[f"well-behaved: {outcome.error[:80]}"] += 1
    elif sum(count for _, count in outcome.times) != tokens or outcome.num_generated != tokens:
        tally.wrong["well-behaved: tokens are missing"] += 1


async def vanishing(port: int, rng: random.Random, tally: Tally) -> None:  # noqa: ARG001  # a kind of client
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    raw = request_bytes(port, text_body(rng, 2000))
    writer.write(raw[: rng.randrange(1, len(raw))] if rng.random() < 0.2 else raw)
    await writer.drain()
    await asyncio.sleep(rng.random() * 2)
    writer.transport.abort()


async def dawdling(port: int, rng: random.Random, tally: Tally) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(request_bytes(port, text_body(rng, 64)))
    await writer.drain()
    told = b""
    while piece := await reader.read(64):
        told += piece
        await asyncio.sleep(0.01)
        if told.endswith(b"0\r\n\r\n"):
            break
    if b"data: [DONE]" not in told:
        tally.wrong["slow reader: no end came"] += 1
    writer.close()


async def nonsense(port: int, rng: random.Random, tally: Tally) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request_bytes(port, rng.choice(BAD)))
    await writer.drain()
    status = (await reader.readline()).split(b" ")[1:2]
    if not (status and status[0].startswith(b"4")):
        tally.wrong[f"nonsense is answered with {status}"] += 1
    writer.close()


Kind = Callable[[int, random.Random, Tally], Awaitable[None]]
KINDS: dict[str, tuple[Kind, int]] = {
    "well-behaved": (well_behaved, 6),
    "vanishing": (vanishing, 2),
    "dawdling": (dawdling, 1),
    "nonsense": (nonsense, 1),
}


async def client(port: int, number: int, end: float, tally: Tally) -> None:
    """One place among the streams; what sits on it changes from request to request."""
    rng = random.Random(number)
    names, weights = list(KINDS), [weight for _, weight in KINDS.values()]
    while time.monotonic() < end:
        [name] = rng.choices(names, weights)
        try:
            async with asyncio.timeout(tally.deadline_s):
                await KINDS[name][0](port, rng, tally)
            tally.done[name] += 1
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            tally.wrong[f"{name}: {type(error).__name__} {error}"] += 1


class Sample(NamedTuple):
    """At one time: what is resident of the server and its children, and requests so far."""

    at_s: float
    resident: int
    requests: int


def growth(samples: Sequence[Sample]) -> float:
    """Bytes by which a line through the samples (least squares) rises from the first to the last."""
    mean_s, mean = fmean(one.at_s for one in samples), fmean(one.resident for one in samples)
    across = sum((one.at_s - mean_s) ** 2 for one in samples)
    together = sum((one.at_s - mean_s) * (one.resident - mean) for one in samples)
    return together / across * (samples[-1].at_s - samples[0].at_s)


def allowed(samples: Sequence[Sample]) -> int:
    return max(SLACK_BYTES, REQUEST_BYTES * (samples[-1].requests - samples[0].requests))


async def load(port: int, pid: int, streams: int, seconds: float, tally: Tally) -> list[Sample]:
    """A sample every hundredth of the time."""
    end, samples = time.monotonic() + seconds, list[Sample]()
    clients = [asyncio.create_task(client(port, number, end, tally)) for number in range(streams)]
    while time.monotonic() < end:
        await asyncio.sleep(seconds / 100)
        samples.append(Sample(time.monotonic(), resident_bytes(pid), tally.done.total()))
    await asyncio.gather(*clients)
    return samples


def resident_bytes(pid: int) -> int:
    """Of a process and all below it, from /proc."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(resident_bytes(int(child)) for child in children)


async def metrics(port: int) -> dict[str, float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n\r\n".encode())
    text = (await reader.read()).decode()
    writer.close()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("headrace_")]
    return {name: float(value) for name, value in lines}


async def held_now(port: int) -> dict[str, float]:
    seen = await metrics(port)
    held = {name: seen[f"headrace_{name}"] for name in ("open_sequences", "requests_running", "requests_waiting")}
    return {**held, "kv_blocks": seen["headrace_kv_cache_used_blocks"]}


async def settled(port: int, look_s: float = 0.2) -> dict[str, float]:
    """What is still held once nobody asks for anything any more; waits for zero, but not for ever."""
    held, end = dict[str, float](), time.monotonic() + SETTLE_S
    while time.monotonic() < end:
        held = await held_now(port)
        if not any(held.values()):
            break
        await asyncio.sleep(look_s)
    return held


async def leaving(port: int) -> float:
    """Seconds until all is back that a client held who left in the middle of its answer: the longest of some. The
    engine tells its numbers ten times a second, so a tenth of it may be the looking."""
    longest, rng = 0.0, random.Random(1)
    for i in range(LEAVERS):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes(port, text_body(rng, 2000, stream=i % 2 == 0)))
        await writer.drain()
        async with asyncio.timeout(SETTLE_S):
            while (await held_now(port))["kv_blocks"] == 0:
                await asyncio.sleep(0.01)
        began = time.monotonic()
        writer.transport.abort()
        await settled(port, look_s=0.01)
        longest = max(longest, time.monotonic() - began)
    return longest


def cpu_s(pid: int) -> float:
    """Processor time of a process and all below it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(cpu_s(int(child)) for child in children)


async def run(port: int, pid: int, streams: int, seconds: float, deadline_s: float) -> dict[str, object]:
    tally = Tally(deadline_s)
    await well_behaved(port, random.Random(0), tally)
    began, before = time.monotonic(), cpu_s(pid)
    samples = await load(port, pid, streams, seconds, tally)
    share = (cpu_s(pid) - before) / (time.monotonic() - began)
    held = await settled(port)
    if any(held.values()):
        tally.wrong["something is still held"] += 1
    late = samples[len(samples) // 3 :]  # the first third fills caches and buffers
    if growth(late) > allowed(late):
        tally.wrong["memory grows"] += 1
    told = {"done": dict(tally.done), "wrong": dict(tally.wrong), "held": held}
    told |= {"longest_answer_s": tally.longest_s, "silence_s": tally.silence_s, "cpu_share": share}
    told |= {"freed_s": None if any(held.values()) else await leaving(port)}
    resident = {"first": late[0].resident, "last": late[-1].resident, "growth": growth(late), "allowed": allowed(late)}
    return told | {"memory_bytes": resident}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--deadline", type=float, default=300.0, help="seconds an answer may take")
    parser.add_argument("rest", nargs="*", help="after --: options of headrace serve")
    given = parser.parse_args()
    with local_server(given.rest) as server:
        told = asyncio.run(run(server.port, server.pid, given.streams, given.seconds, given.deadline))
    print(json.dumps(told | {"exit_code": server.exit_code}))
    return 1 if told["wrong"] or server.exit_code else 0


if __name__ == "__main__":
    sys.exit(main())
