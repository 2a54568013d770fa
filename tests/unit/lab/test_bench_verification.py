"""``headrace bench verification``: its rows, by number of streams, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_models import SMALL, write_model
from test_bench_command import bench, reported


@pytest.mark.usefixtures("short")
def test_counts_and_ratios_by_streams_go_into_a_document(tmp_path: Path) -> None:
    document = tmp_path / "d.md"
    document.write_text("<!-- bench verification: begin -->\n<!-- bench verification: end -->\n")
    settings = tmp_path / "settings.toml"
    settings.write_text("[speculation]\ndraft_layers = 1\nmax_drafts = 3\n")
    arguments = ("--streams", "1,3", "--tokens", "8", "--repeats", "1", "--json", "--speculation", "self")
    more = ("--config", str(settings), "--table", str(document), "--model", write_model(tmp_path / "m"), *SMALL)
    rows = {row["what"]: row["value"]["median"] for row in reported(bench("verification", *arguments, *more))["rows"]}
    for streams in ("1 stream", "3 streams"):
        assert all(rows[f"{name}: {streams}: rate"] > 0 for name in ("plain", "fixed", "planned"))
        fixed = rows[f"fixed: {streams}: verified"]
        assert 1 < fixed <= 3  # all three in every step but the last ones
        assert rows[f"planned: {streams}: verified"] <= 3
        assert 1 <= rows[f"fixed: {streams}: emitted"] <= 1 + fixed
    assert "| plain | fixed | planned |" in document.read_text()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Prompts that fit a tiny context, and a cache of its own for the cost curve."""
    monkeypatch.setattr("headrace.lab.bench.verification.ARTICLE", "so it is " * 4)
    monkeypatch.setattr("headrace.lab.bench.verification.PROMPT_WORDS", 4)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("--speculation", "none"), "speculation"),
        (("--streams", "0"), "streams"),
        (("--table", "/nowhere.md"), "table"),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path: Path, arguments: tuple[str, ...], field: str) -> None:
    done = bench("verification", *arguments, "--model", write_model(tmp_path / "m"), *SMALL)
    assert done.exit_code != 0
    assert f"{field}: " in done.stderr
