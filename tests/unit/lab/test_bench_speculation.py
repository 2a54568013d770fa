"""``headrace bench speculation``: what it measures, what it refuses, and that it looks at the tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_models import SMALL, write_model
from test_bench_command import bench, reported

from headrace.api.llm import LLM
from headrace.config import resolve
from headrace.lab.bench import acceptance, speculation
from headrace.lab.bench.report import Report
from headrace.lab.bench.table import figure


@pytest.fixture
def short_prompts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Prompts that fit a tiny context, and a cache of its own for the cost curve."""
    monkeypatch.setattr("headrace.lab.bench.speculation_prompts.CODE", "a = b\n" * 4)
    monkeypatch.setattr("headrace.lab.bench.speculation_prompts.ARTICLE", "so it is " * 4)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("short_prompts")
@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_ratios_and_rates_of_every_workload(tmp_path: Path, method: str) -> None:
    arguments = ("--streams", "1,2", "--tokens", "12", "--repeats", "2", "--json", "--speculation", method)
    plain = reported(bench("speculation", *arguments, "--model", write_model(tmp_path / "m"), *SMALL))
    ratios = [row for row in plain["rows"] if row["unit"] == "x"]
    assert len(ratios) == 3 * 2
    assert len(plain["rows"]) == 2 * len(ratios)
    assert all(row["value"]["median"] > 0 and "drafts accepted" in row["note"] for row in ratios)
    assert [curve["title"] for curve in plain["curves"]] == ["copy code", "quote and summarise", "chat"]
    assert plain["settings"]["speculation"] == method


@pytest.mark.usefixtures("short_prompts")
def test_the_mode_s_cost_in_drafts_goes_into_its_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares are counts of drafts, so the ratio is that of the rows above it whatever else the machine does."""
    monkeypatch.setattr("headrace.lab.bench.workload.FIRST_ID", 5)
    monkeypatch.setattr("headrace.lab.bench.workload.LAST_ID", 250)
    document = tmp_path / "d.md"
    document.write_text("<!-- bench determinism: begin -->\n<!-- bench determinism: end -->\n")
    settings = tmp_path / "settings.toml"
    settings.write_text("[speculation]\ndraft_layers = 1\n")
    arguments = ("--rows", "1", "--tokens", "8", "--repeats", "1", "--json", "--speculation", "self")
    more = ("--config", str(settings), "--table", str(document), "--model", write_model(tmp_path / "m"), *SMALL)
    plain = reported(bench("determinism", *arguments, *more))
    medians = {row["what"]: row["value"]["median"] for row in plain["rows"]}
    exact, rejection = (medians[f"drafts accepted, {rule}"] for rule in ("exact", "rejection"))
    assert medians["drafts accepted, exact over rejection"] == exact / rejection
    assert f"| drafts accepted, exact | {figure(exact)} |" in document.read_text()


@pytest.mark.usefixtures("short_prompts")
def test_where_a_model_drafts_both_rules_of_acceptance_are_compared(tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text("[speculation]\ndraft_layers = 1\n")
    arguments = ("--streams", "1", "--tokens", "12", "--repeats", "2", "--json", "--speculation", "self")
    model = write_model(tmp_path / "m")
    plain = reported(bench("speculation", *arguments, "--config", str(settings), "--model", model, *SMALL))
    shares = {row["what"]: row["value"]["median"] for row in plain["rows"] if row["unit"] == "%"}
    assert list(shares) == ["drafts accepted, exact", "drafts accepted, rejection"]
    assert "drafts accepted, exact over rejection" in {row["what"] for row in plain["rows"]}
    assert all(0 < share <= 100 for share in shares.values())


@pytest.mark.usefixtures("short_prompts")
def test_each_rule_is_the_one_measured_in_the_deterministic_mode_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mode turns rejection into the exact rule, and says so in its notes; the shares are taken without it."""
    changed: list[tuple[str, ...]] = []
    monkeypatch.setattr(acceptance, "_share", lambda llm, *_: changed.append(llm.notes) or 50.0)
    settings = tmp_path / "settings.toml"
    settings.write_text("[speculation]\ndraft_layers = 1\n")
    config = resolve(
        {"model": write_model(tmp_path / "m"), "speculation": "self", "deterministic": True, "kv_memory": 4 << 20},
        settings,
    )
    acceptance.add_acceptance(Report("determinism", {}), config, [1, 2, 3], 4, 1)
    assert changed == [(), ()]


@pytest.mark.parametrize(
    ("arguments", "text", "field"),
    [
        (("--speculation", "none"), True, "speculation"),
        (("--streams", "0"), True, "streams"),
        (("--table", "/nowhere.md"), True, "table"),
        (("--workloads", "poems"), True, "workloads"),
        ((), True, "tokens"),  # the real prompts do not fit the tiny context
        ((), False, "model"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], text: bool, field: str
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    result = bench("speculation", *arguments, "--model", write_model(tmp_path / "m", text=text), *SMALL)
    assert result.exit_code == 2
    assert field in result.stderr
    assert result.stdout == ""


@pytest.mark.usefixtures("short_prompts")
def test_tokens_that_differ_are_an_error_and_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = speculation.run_once

    def wrong(llm: LLM, prompt: list[int], streams: int, tokens: int) -> speculation.Sample:
        sample = real(llm, prompt, streams, tokens)
        if llm.engine._drafting is not None:
            sample.token_ids[0][-1] ^= 1
        return sample

    monkeypatch.setattr(speculation, "run_once", wrong)
    arguments = ("--streams", "1", "--tokens", "4", "--repeats", "1", "--model", write_model(tmp_path / "m"), *SMALL)
    result = bench("speculation", *arguments)
    assert result.exit_code != 0
    assert "changed a greedy token" in result.stderr
