"""Hit rates on traces: by hand, by brute force, and the published ones of the conversation trace."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from headrace import env
from headrace.cli.kv import parse_capacities
from headrace.cli.main import build_app
from headrace.contract.errors import ConfigError
from headrace.lab.kv_trace import belady, infinite, read_trace, simulate


def test_by_hand() -> None:
    chains = [[1, 2, 3], [1, 2, 4], [1, 2, 3], [9]]
    assert infinite(chains) == 2 + 3
    assert belady(chains, 3) == 2 + 3  # keeps 3 and not 4, which nobody asks for again
    assert belady(chains, 1) == 1 + 1
    report = simulate(chains, [2, 100])
    assert (report.requests, report.blocks, report.distinct) == (4, 10, 5)
    assert report.rows[1].lru == report.rows[1].ours == report.rows[1].belady == report.infinite == 0.5


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=1), max_size=7), st.integers(1, 3))
def test_belady_is_the_best_that_can_be_kept(chains: list[list[int]], capacity: int) -> None:
    """Against every choice of what to keep, for requests of one block."""

    def best(step: int, held: frozenset[int]) -> int:
        if step == len(chains):
            return 0
        block = chains[step][0]
        pool = held | {block}
        keeps = itertools.combinations(sorted(pool), min(capacity, len(pool)))
        return (block in held) + max(best(step + 1, frozenset(keep)) for keep in keeps)

    assert belady(chains, capacity) == best(0, frozenset())


def test_a_trace_that_cannot_be_read_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    for text, words in (('{"hash_ids": [1]}\n{"hash_ids": "x"}\n', ":2:"), ("", "no blocks"), ("{}\n", ":1:")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=words):
            read_trace(path)
    with pytest.raises(ConfigError, match="missing"):
        read_trace(tmp_path / "missing")


def test_capacities_are_checked() -> None:
    assert parse_capacities("30, 10,10") == [10, 30]
    for text in ("", "a", "0,3", "-1", ",".join(map(str, range(1, 40)))):
        with pytest.raises(ConfigError, match="capacities"):
            parse_capacities(text)


def test_the_command_reports_and_plots(tmp_path: Path) -> None:
    trace, plot = tmp_path / "t.jsonl", tmp_path / "t.png"
    trace.write_text('{"timestamp": 0, "hash_ids": [1, 2]}\n{"hash_ids": [1, 2]}\n')
    arguments = ["kv", "simulate", str(trace), "--capacities", "1,2"]
    told = CliRunner().invoke(build_app(), [*arguments, "--json"])
    assert told.exit_code == 0, told.output
    rows = json.loads(told.output)["rows"]
    assert [(row["capacity"], row["lru"]) for row in rows] == [(1, 0.25), (2, 0.5)]
    pytest.importorskip("matplotlib")
    drawn = CliRunner().invoke(build_app(), [*arguments, "--plot", str(plot)])
    assert drawn.exit_code == 0, drawn.output
    assert plot.read_bytes().startswith(b"\x89PNG")


def conversation_trace() -> list[list[int]]:
    data = env.test_data()
    if data is None:
        pytest.skip("HEADRACE_TEST_DATA is not set")
    return read_trace(data / "traces" / "mooncake_conversation_trace.jsonl")


def test_the_published_rates_of_the_conversation_trace() -> None:
    chains = conversation_trace()
    total = sum(map(len, chains))
    assert (len(chains), total) == (12_031, 288_500)
    assert round(infinite(chains) / total, 4) == 0.3664
    assert round(belady(chains, 10_000) / total, 4) == 0.3664
    [row] = simulate(chains, [3_000]).rows
    assert row.ours >= 1.5 * row.lru


@pytest.mark.slow
def test_lru_rates_by_capacity_and_ours_is_nowhere_worse() -> None:
    rows = {row.capacity: row for row in simulate(conversation_trace(), [10_000, 30_000, 100_000]).rows}
    assert [round(rows[c].lru, 4) for c in rows] == [0.2116, 0.3257, 0.3637]
    assert all(row.ours >= 0.99 * row.lru for row in rows.values())
