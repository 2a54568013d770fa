"""What load is sent and what its figures mean, on made-up times."""

from __future__ import annotations

import asyncio
import json
import math
import statistics
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest

from headrace.contract.errors import ConfigError
from headrace.lab.bench.load.arrivals import BLOCK, Shot, Synthetic, Trace
from headrace.lab.bench.load.client import ServerError, Target, _take, first_model
from headrace.lab.bench.load.figures import Outcome, Slo, percentile
from headrace.lab.bench.load.run import fill, send
from headrace.lab.bench.plot import save_plot
from headrace.lab.bench.report import Report

Found = TypeVar("Found")


def outcome(*times: tuple[float, int], generated: int = 0) -> Outcome:
    return Outcome(sent_s=1.0, num_prompt=4, times=list(times), num_generated=generated)


def test_definitions() -> None:
    one = outcome((1.5, 1), (1.7, 2), (2.0, 1))
    assert (one.tokens, one.ttft_s, one.e2e_s) == (4, 0.5, 1.0)
    assert one.tpot_s == pytest.approx(0.5 / 3)
    assert one.itl_s() == pytest.approx([0.2, 0.3])  # one gap per event, as vLLM has it
    assert sum(one.itl_s()) == pytest.approx(one.e2e_s - one.ttft_s)
    assert outcome((1.5, 1)).tpot_s is None
    assert outcome((1.5, 1), generated=3).tokens == 3


def test_percentiles_lie_between_values() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([0.0, 10.0], 0.99) == pytest.approx(9.9)
    assert percentile([7.0], 0.9) == 7.0
    with pytest.raises(ValueError, match="needs a value"):
        percentile([], 0.5)


def test_goodput_counts_what_keeps_every_limit() -> None:
    fast, slow, failed = outcome((1.1, 1), (1.2, 1)), outcome((1.1, 1), (9.0, 1)), outcome()
    failed.error = "status 500"
    report = Report("serve", {})
    fill(report, [fast, slow, failed], elapsed_s=2.0, slo=Slo(ttft_s=0.2, tpot_s=0.5))
    rows = {row.what: row for row in report.rows}
    figures = {what: row.value.median for what, row in rows.items() if row.value is not None}
    assert (figures["requests"], figures["goodput"], figures["failed requests"]) == (1.0, 0.5, 1)
    assert rows["failed requests"].note == "status 500"
    assert figures["output tokens"] == 2.0
    assert figures["TTFT p50"] == pytest.approx(100.0)


def test_nothing_but_failures_is_a_report_too() -> None:
    failed, report = outcome(), Report("serve", {})
    failed.error = "no"
    fill(report, [failed], 1.0, Slo())
    assert [row.what for row in report.rows][-1] == "failed requests"


def times_of(load: Synthetic) -> list[float]:
    return [shot.at_s for shot in load.shots() if shot.at_s is not None]


def test_drawn_times_have_the_rate_exactly_and_depend_on_the_seed_alone() -> None:
    load = Synthetic(2000, 3, 2, rate=50.0, seed=1)
    assert load.shots() == replace(load).shots()
    times = times_of(load)
    assert times == sorted(times)
    assert times[0] > 0  # the first has a gap before it, too
    assert times[-1] == pytest.approx(2000 / 50, rel=1e-12)
    assert times_of(Synthetic(1, 3, 2, rate=4.0)) == [pytest.approx(0.25)]
    assert [shot.prompt for shot in load.shots()] == [shot.prompt for shot in replace(load, rate=None).shots()]
    assert all(shot.at_s is None for shot in Synthetic(3, 3, 2).shots())


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_burstiness_is_the_shape_of_the_gaps(burstiness: float) -> None:
    """A gamma distribution's deviation is its mean over the square root of its shape."""
    times = times_of(Synthetic(4000, 1, 1, rate=10.0, burstiness=burstiness))
    gaps = [b - a for a, b in zip([0.0, *times], times)]
    assert statistics.fmean(gaps) == pytest.approx(0.1)
    assert statistics.pstdev(gaps) == pytest.approx(0.1 / burstiness**0.5, rel=0.1)


def test_without_any_burst_requests_come_evenly() -> None:
    assert times_of(Synthetic(4, 1, 1, rate=2.0, burstiness=math.inf)) == [0.5, 1.0, 1.5, 2.0]


def test_means_and_deviations_stand_beside_the_percentiles() -> None:
    report = Report("serve", {})
    fill(report, [outcome((1.1, 1), (1.2, 1)), outcome((1.3, 1), (1.6, 3))], elapsed_s=1.0, slo=Slo())
    found = {row.what: row.value.median for row in report.rows if row.value is not None}
    assert (found["TTFT mean"], found["TTFT std"]) == (pytest.approx(200), pytest.approx(100))
    assert (found["ITL mean"], found["ITL std"], found["ITL p50"]) == (
        pytest.approx(200),
        pytest.approx(100),
        pytest.approx(200),
    )
    assert (found["TPOT mean"], found["E2E mean"]) == (pytest.approx(100), pytest.approx(400))


def test_an_event_counts_once_whatever_it_brings() -> None:
    one = outcome()
    for choices in ([{"text": "a", "token_ids": [1, 2, 3]}], [{"text": ""}], [], [{"text": "b"}]):
        _take(one, {"choices": choices})
    assert [count for _, count in one.times] == [3, 0, 1]  # an event without text is one, one without choices is none
    assert len(one.itl_s()) == 2


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"error": {"message": "too long"}}, "too long"),
        ({"error": "a text"}, "a text"),
        ({"error": {"code": 5}}, "5"),
        (["no object"], "no object"),
    ],
)
def test_what_servers_say_of_errors(event: Any, words: str) -> None:
    with pytest.raises(ServerError, match=words):
        _take(outcome(), event)


def test_nulls_beside_tokens_are_no_errors() -> None:
    one = outcome()
    _take(one, {"error": None, "usage": None, "choices": [{"text": "a"}]})
    _take(one, {"usage": {"prompt_tokens": 3}, "choices": []})
    assert (one.tokens, one.num_prompt) == (1, 3)


class Answers:
    """A server that says one thing to every request, on a socket."""

    def __init__(self, *lines: str) -> None:
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
        self._said = (head + "".join(f"data: {line}\n\n" for line in lines)).encode()
        self.open = self.most_open = 0

    def add(self, raw: bytes) -> None:
        """As it is, behind the events."""
        self._said += raw

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self._said)
        self.open -= 1
        writer.close()


def asked(answers: Answers, ask: Callable[[Target], Awaitable[Found]]) -> Found:
    async def run() -> Found:
        server = await asyncio.start_server(answers.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            return await ask(Target(f"http://127.0.0.1:{port}"))

    return asyncio.run(run())


def outcomes_of(answers: Answers, shots: list[Shot], concurrency: int | None) -> list[Outcome]:
    return asked(answers, lambda target: send(target, shots, concurrency))


ODD_COUNTS = ('"2"', "[2]", "-7", "1e999", "NaN", "2.5", "true")


@pytest.mark.parametrize(
    "odd",
    [
        *("[1]", "5", '{"error": "gone"}', '{"choices": [7]}', "{", "x" * (1 << 21)),
        *(f'{{"usage": {{"completion_tokens": {count}}}}}' for count in ODD_COUNTS),
        *(f'{{"usage": {{"prompt_tokens": {count}}}}}' for count in ODD_COUNTS),
        '{"usage": {"prompt_tokens_details": {"cached_tokens": "9"}}}',
        '{"usage": {"prompt_tokens_details": [1]}}',
    ],
)
def test_one_odd_event_is_a_failure_of_its_own_request(odd: str) -> None:
    found = outcomes_of(Answers('{"choices": [{"text": "a"}]}', odd), [Shot(None, [1], 2)] * 3, 2)
    assert len(found) == 3
    assert all(one.error for one in found)
    fill(Report("serve", {}), found, elapsed_s=1.0, slo=Slo())  # and the report stands


def test_events_may_come_without_a_blank_behind_their_colon() -> None:
    answers = Answers()
    answers.add(b'event: x\r\ndata:{"choices": [{"text": "a"}]}\r\n\r\n: a comment\r\n\r\ndata:[DONE]\r\n\r\n')
    [found] = outcomes_of(answers, [Shot(None, [1], 1)], 1)
    assert (found.error, found.tokens) == (None, 1)


@pytest.mark.parametrize(
    "told", ['{"data": []}', "null", '{"data": [{}]}', '{"data": ["x"]}', "[]", "<html>", '{"data": [{"id": 5}]}', ""]
)
def test_a_server_that_names_no_model_is_told_of(told: str) -> None:
    answers = Answers()
    answers.add(told.encode())
    with pytest.raises(ServerError, match="/v1/models"):
        asked(answers, first_model)


def test_whoever_waits_for_a_place_is_sent_late_and_says_so() -> None:
    answers = Answers('{"choices": [{"text": "a"}]}', "[DONE]")
    found = outcomes_of(answers, [Shot(0.0, [1], 1)] * 4, 1)
    assert [one.error for one in found] == [None] * 4
    assert answers.most_open == 1
    waits = [one.late_s for one in found]
    assert waits == sorted(waits)
    assert [one.sent_s >= before.ended_s for before, one in pairwise(found)] == [True] * 3
    assert waits[1] >= found[0].ended_s - found[0].due_s  # type: ignore[operator]  # all of the first one's time
    report = Report("serve", {})
    fill(report, found, 1.0, Slo())
    assert {row.what for row in report.rows} >= {"sent late p50", "sent late mean"}
    assert all(one.late_s == 0.0 for one in outcomes_of(answers, [Shot(None, [1], 1)], 1))


def test_curves_of_a_served_load_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the bench extra is not installed")
    report, picture = Report("serve", {}), tmp_path / "load.png"
    fill(report, [outcome((1.1, 1), (1.2, 1)), outcome((1.3, 1), (1.6, 3))], elapsed_s=1.0, slo=Slo())
    assert [curve.title for curve in report.curves] == ["TTFT, share of requests", "ITL, share of events"]
    assert all(curve.points[-1][1] == 1.0 for curve in report.curves)
    save_plot(report, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_trace_keeps_times_lengths_and_shared_beginnings(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [
        {"timestamp": 1000, "input_length": 2 * BLOCK + 5, "output_length": 7, "hash_ids": [1, 2, 3]},
        {"timestamp": 3000, "input_length": BLOCK + 9, "output_length": 900, "hash_ids": [1, 9]},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    first, second = Trace(path, 10, speed=2.0, most_tokens=100).shots()
    assert (first.at_s, second.at_s) == (0.0, 1.0)
    assert (len(first.prompt), len(second.prompt)) == (2 * BLOCK + 5, BLOCK + 9)
    assert (first.max_tokens, second.max_tokens) == (7, 100)
    assert first.prompt[:BLOCK] == second.prompt[:BLOCK]
    assert first.prompt[BLOCK:][:9] != second.prompt[BLOCK:]
    assert [len(shot.prompt) for shot in Trace(path, 1, max_length=6).shots()] == [6]


def test_a_trace_in_csv(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.6805900,20,0\n"
        "2023-11-16 18:15:51.1805900,30,5\n"
    )
    first, last = Trace(path, 10).shots()
    assert (first.at_s, last.at_s) == (0.0, pytest.approx(4.5))
    assert (len(last.prompt), last.max_tokens) == (30, 5)


@pytest.mark.parametrize(
    "text", ["", "{", '{"timestamp": 0}', '{"timestamp": 0, "input_length": 0, "output_length": 1}']
)
def test_a_bad_trace_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match="trace"):
        Trace(path, 3).shots()
