"""The arithmetic around measurements: spreads, shares of limits, workloads, windows, what a model must cost."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from headrace import _kernels
from headrace.contract.errors import ConfigError, ModelError
from headrace.lab.bench import machine, workload
from headrace.lab.bench.model_limits import ModelCost, model_cost
from headrace.lab.bench.perplexity import perplexity, score_windows, windows_of
from headrace.lab.bench.report import Report, Row
from headrace.lab.bench.roofline import Peaks, bench_roofline, thread_counts
from headrace.lab.bench.scheduler import answer, bench_scheduler
from headrace.lab.bench.stats import Spread, spread, timed
from headrace.lab.bench.workload import Batch, draw_prompts


def test_a_spread_is_the_median_and_the_extremes() -> None:
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0, 3)
    assert Spread(2.0, 1.0, 4.0, 3).inverted(8) == Spread(4.0, 2.0, 8.0, 3)  # the slowest run is the lowest rate
    with pytest.raises(ValueError, match="at least one"):
        spread([])


def test_warm_up_runs_are_not_counted() -> None:
    calls: list[int] = []
    assert timed(lambda: calls.append(1), repeats=3, warm_up=2).runs == 3
    assert len(calls) == 5


@pytest.mark.parametrize(("unit", "median", "share"), [("tok/s", 50.0, 0.5), ("ms", 200.0, 0.5)])
def test_a_share_says_how_much_of_the_limit_was_reached(unit: str, median: float, share: float) -> None:
    assert Row("x", unit, Spread(median, 0, 0, 1), limit=100.0).share == pytest.approx(share)


def test_a_row_without_a_figure_has_no_share_and_a_reason() -> None:
    row = Row("x", "ms", None, limit=3.0, note="does not fit").plain()
    assert row["value"] is None
    assert row["share"] is None
    assert row["note"] == "does not fit"


def test_reports_carry_the_machine() -> None:
    plain = Report("x", {}).finish().plain()
    assert {"cpu", "processors", "versions", "date", "load_average"} <= set(plain["machine"])
    assert plain["peak_rss_bytes"] > 1 << 20


def test_the_machine_is_read_from_proc(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("model name\t: Wheel 9\nflags\t\t: fpu avx2 amx_int8\n\nmodel name\t: other\n")
    (tmp_path / "meminfo").write_text("MemTotal:       1000 kB\nMemFree: 1 kB\n")
    (tmp_path / "loadavg").write_text("1.50 1.00 0.50 1/1 1\n")
    facts = machine.machine_facts(tmp_path)
    assert facts["cpu"] == "Wheel 9"
    assert facts["vector_flags"] == ["avx2", "amx_int8"]
    assert facts["memory_bytes"] == 1000 * 1024
    assert facts["load_average"] == 1.5


def test_prompts_depend_on_their_seed_alone_and_share_only_what_is_meant() -> None:
    first, again = draw_prompts(3, 8, "a", shared=4), draw_prompts(3, 8, "a", shared=4)
    assert first == again
    assert len({tuple(ids[:4]) for ids in first}) == 1
    assert len({ids[4] for ids in first}) == 3
    assert all(len(ids) == 12 for ids in first)
    batch = Batch(2, 8, 4)
    assert batch.prompts(0) != batch.prompts(1)
    assert min(min(ids) for ids in first) >= workload.FIRST_ID


def test_windows_are_whole_and_do_not_overlap() -> None:
    assert windows_of(range(10), 4, 9) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert windows_of(range(10), 4, 1) == [[0, 1, 2, 3]]
    with pytest.raises(ConfigError, match="window"):
        windows_of(range(3), 4, 1)


def test_perplexity_of_a_fair_die_is_its_sides() -> None:
    assert perplexity([-3 * math.log(6), -2 * math.log(6)], 5) == pytest.approx(6)


def test_the_first_token_of_a_window_is_not_scored() -> None:
    def entry(token: int, value: float) -> dict[int, Any]:
        return {token: SimpleNamespace(logprob=value), 99: SimpleNamespace(logprob=-0.1)}

    output = SimpleNamespace(prompt_logprobs=[None, entry(6, -1.0), entry(7, -2.0)])
    llm: Any = SimpleNamespace(generate=lambda *_: [output])
    assert score_windows(llm, [[5, 6, 7]]) == [-3.0]
    with pytest.raises(ConfigError, match="prompt_logprobs"):
        score_windows(llm, [[5, 6, 7, 8]])


# -- limits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
def test_every_word_is_read_once(threads: int) -> None:
    before = _kernels.num_threads()
    try:
        _kernels.set_num_threads(threads)
        for count in (0, 1, 15, 16, 1001):
            words = np.arange(count, dtype=np.uint64) * np.uint64(3)
            assert _kernels.read_all(words) == int(words.sum())
    finally:
        _kernels.set_num_threads(before)


@pytest.mark.parametrize("loop", [_kernels.multiply_floats, _kernels.multiply_bytes])
def test_loops_count_their_operations_on_every_thread(loop: Any) -> None:
    before = _kernels.num_threads()
    try:
        _kernels.set_num_threads(1)
        single, _, method = loop(100)
        assert loop(200)[0] == 2 * single
        assert method
        _kernels.set_num_threads(2)
        assert loop(100)[0] == 2 * single
    finally:
        _kernels.set_num_threads(before)
    with pytest.raises(ValueError, match="rounds"):
        loop(0)


def test_the_roofline_has_a_row_per_limit_and_thread_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.lab.bench.roofline.MIN_BUFFER_BYTES", 1 << 20)
    monkeypatch.setattr("headrace.lab.bench.roofline.last_level_cache_bytes", lambda: 0)
    monkeypatch.setattr("headrace.lab.bench.roofline.ROUNDS", 1000)
    report = bench_roofline(max_threads=2, repeats=1)
    assert len(report.rows) == 6
    assert all(row.value is not None and row.value.median > 0 for row in report.rows)
    assert thread_counts(6) == [1, 2, 4, 6]
    with pytest.raises(ConfigError, match="threads"):
        bench_roofline(max_threads=0)


def flat_peaks(read: float, ops: float) -> Peaks:
    def same(value: float) -> Spread:
        return Spread(value, value, value, 1)

    return Peaks(1, same(read), same(ops / 4), same(ops), "", "")


def test_a_step_is_bound_by_memory_until_its_rows_outweigh_it() -> None:
    cost = ModelCost(weight_bytes=1000, prompt_macs=500, kv_bytes=2.0)
    peaks = flat_peaks(read=100.0, ops=2000.0)
    assert cost.step_seconds(peaks, rows=1, context=100) == pytest.approx((1000 + 200) / 100)
    assert cost.step_seconds(peaks, rows=40, context=0) == pytest.approx(2 * 40 * 500 / 2000)
    assert cost.prefill_rate(peaks, in_floats=False) == pytest.approx(2.0)
    assert cost.prefill_rate(peaks, in_floats=True) == pytest.approx(0.5)
    batch = Batch(count=2, length=4, max_tokens=3, shared=6)  # 14 prompt tokens, then two steps at a depth of 11
    expected = 14 / 2.0 + 2 * (1000 + 2 * 11 * 2.0) / 100
    assert cost.batch_rate(peaks, batch, in_floats=False) == pytest.approx(6 / expected)


def test_costs_are_read_from_the_file_s_header(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    writer = GGUFWriter(str(file), "llama")
    weights = quantize(np.ones((4, 32), np.float32), GGMLQuantizationType.Q8_0)
    writer.add_tensor("blk.0.ffn_up.weight", weights, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.add_tensor("blk.0.ffn_norm.weight", np.ones(32, np.float32))
    writer.add_tensor("token_embd.weight", np.ones((8, 32), np.float32))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    assert model_cost(file, 3.0) == ModelCost(weight_bytes=4 * 34 + 8 * 32 * 4, prompt_macs=4 * 32, kv_bytes=3.0)
    assert model_cost(tmp_path, 3.0) is None
    file.write_bytes(b"GGUF")
    with pytest.raises(ModelError):
        model_cost(file, 3.0)


# -- scheduling ---------------------------------------------------------------------------------------------------


def test_scheduling_is_measured_in_the_core_in_the_engine_and_for_a_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.lab.bench.scheduler.STEPS", 12)
    report = bench_scheduler((3,), repeats=1)
    figures = {row.what: row.value.median for row in report.rows if row.value}
    assert len(figures) == 4
    assert all(value > 0 for value in figures.values())


def test_the_idle_device_answers_for_sampling_slices_only() -> None:
    plan: Any = SimpleNamespace(samples=np.array([1, 0, 1], np.uint8), num_scheduled=np.array([4, 9, 1], np.int32))
    valid, offsets, tokens = answer(plan, np.full(8, 7, np.int32))
    assert valid.tolist() == [4, 9, 1]
    assert offsets.tolist() == [0, 1, 1, 2]
    assert tokens.tolist() == [7, 7]
