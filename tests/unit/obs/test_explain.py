"""``headrace explain``: exit codes, ranges, formats; nothing recorded can act in a terminal or a browser."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from headrace._core import Scheduler
from headrace.cli.explain import STEPS_UNASKED, explain, parse_steps
from headrace.cli.guard import GuardedCommand
from headrace.contract.errors import ConfigError
from headrace.engine.admission import add_sequence
from headrace.lab.explain import page
from headrace.lab.explain.page import page_data, page_range, render
from headrace.lab.explain.teller import tell
from headrace.lab.worked_examples import EXAMPLES, RECORDINGS
from headrace.obs.recorder import Recorder
from headrace.obs.recording import Recording, read_recording

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m&amp;\u2028"

FIELDS = {
    "prompt": [1, 2, 3],
    "max_tokens": 1000,
    "min_tokens": 0,
    "eos_ids": [],
    "stop_ids": [],
    "ignore_eos": False,
    "reads_cache": True,
    "priority": 0,
    "arrival": 0.0,
}


def run(*args: object) -> Result:
    app = typer.Typer()
    app.command(cls=GuardedCommand)(explain)
    return CliRunner().invoke(app, [str(arg) for arg in args])


def record(path: Path, num_steps: int, evil: str = "", fail: bool = False) -> Recording:
    """One sequence decoding for ``num_steps``, with ``evil`` wherever text can come from outside."""
    settings = {"num_blocks": 129, "block_size": 16, "token_budget": 8, "max_model_len": 2000}
    core = Scheduler(**settings)
    recorder = Recorder.open(path, settings, title=evil, names={1: evil} if evil else {})
    fields = {**FIELDS, "salt": evil, "adapter": evil}
    add_sequence(core, 1, fields)
    recorder.added(1, fields)
    for _ in range(num_steps):
        plan = core.plan()
        recorder.planned(plan)
        rows = [np.array(row, np.int32) for row in (plan.num_scheduled, [0, 1], [7])]
        core.commit(plan.step, *rows)
        recorder.committed(plan.step, *rows)
    if fail:
        plan = core.plan()
        recorder.planned(plan)
        core.fail(plan.step)
        recorder.failed(plan.step, evil)
        core.finish(1)
        recorder.finished(1, evil)
        core.plan()
    recorder.close()
    return read_recording(path)


# -- the command -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_worked_example_is_explained_and_checked_by_name(name: str) -> None:
    shown = run(name)
    assert shown.exit_code == 0
    assert "step 0" in shown.stdout
    checked = run(name, "--check")
    assert checked.exit_code == 0
    assert "every plan the same" in checked.stdout


def test_check_exits_1_on_a_difference(tmp_path: Path) -> None:
    text = (RECORDINGS / "v-e1.jsonl").read_text()
    path = tmp_path / "r.jsonl"
    path.write_text(text.replace('"num_scheduled":[1,6,1]', '"num_scheduled":[1,5,2]'))
    result = run(path, "--check")
    assert result.exit_code == 1
    assert "step 2: num_scheduled: recorded [1, 5, 2], replayed [1, 6, 1]" in result.stdout
    told = run(path)
    assert told.exit_code == 0
    assert "Replay differs" in told.stdout
    assert "step 1 " in told.stdout
    assert "step 2 " not in told.stdout


def test_an_unknown_name_lists_the_examples_and_exits_2() -> None:
    result = run("no-such-thing")
    assert result.exit_code == 2
    assert "v-e1" in result.stderr
    assert "Traceback" not in result.stderr


def test_settings_that_make_no_scheduler_are_an_error_with_a_line(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text((RECORDINGS / "v-e1.jsonl").read_text().replace('"token_budget":8', '"tokens":8'))
    result = run(path, "--check")
    assert result.exit_code == 2
    assert f"{path}:1: core:" in result.stderr


SETTINGS_AT_STEP_0 = ("block_size", "num_blocks", "token_budget", "max_model_len", "draft_slots", "groups")


@pytest.mark.parametrize("name", SETTINGS_AT_STEP_0)
@pytest.mark.parametrize("value", ["", "x", [], None, {}, 1.5, -1, 1 << 70])
@pytest.mark.parametrize("form", [(), ("--steps", "0"), ("--json",), ("--check",)], ids=" ".join)
def test_a_setting_of_another_kind_is_an_error_with_a_line(
    tmp_path: Path, name: str, value: object, form: tuple[str, ...]
) -> None:
    head, rest = (RECORDINGS / "v-e1.jsonl").read_text().split("\n", 1)
    config = json.loads(head)
    config["core"][name] = value
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(config, separators=(",", ":")) + "\n" + rest)
    result = run(path, *form)
    assert result.exit_code == 2
    assert re.search(re.escape(str(path)) + r":\d+: ", result.stderr.replace("\n", ""))


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (None, (0, 9)),
        ("2:4", (2, 4)),
        ("2:", (2, 9)),
        (":4", (0, 4)),
        ("3", (3, 3)),
        ("8:99", (8, 9)),
        (":", (0, 9)),
    ],
)
def test_ranges(steps: str | None, expected: tuple[int, int]) -> None:
    assert parse_steps(steps, 10) == expected


@pytest.mark.parametrize("steps", ["x", "4:2", "10", "-1:3", "1:2:3", "", "1.5"])
def test_ranges_that_make_no_sense_are_refused(steps: str) -> None:
    with pytest.raises(ConfigError, match="--steps"):
        parse_steps(steps or "a:b", 10)


def test_a_range_shows_its_steps_only_and_agrees_with_the_whole(tmp_path: Path) -> None:
    recording = record(tmp_path / "r.jsonl", 30)
    whole, part = tell(recording, 0, 29), tell(recording, 10, 12)
    assert [step.step for step in part.steps] == [10, 11, 12]
    strip = {"happenings": []}
    for got, want in zip(part.steps, whole.steps[10:13]):
        assert msgspec.structs.replace(got, **strip) == msgspec.structs.replace(want, **strip)


def test_a_long_recording_is_not_poured_out_unasked(tmp_path: Path) -> None:
    record(tmp_path / "r.jsonl", STEPS_UNASKED + 5)
    result = run(tmp_path / "r.jsonl")
    assert result.stdout.count("returned after") == STEPS_UNASKED
    assert "--steps" in result.stderr


def test_json_is_the_whole_story() -> None:
    data = json.loads(run("v-e1", "--json").stdout)
    assert [step["step"] for step in data["steps"]] == [0, 1, 2, 3]
    assert data["steps"][2]["slices"][1]["num_scheduled"] == 6
    assert data["difference"] is None


def test_a_recording_without_steps_is_explained_too(tmp_path: Path) -> None:
    Recorder.open(tmp_path / "r.jsonl", {"num_blocks": 9}).close()
    assert run(tmp_path / "r.jsonl").exit_code == 0
    assert run(tmp_path / "r.jsonl", "--check").exit_code == 0
    assert run(tmp_path / "r.jsonl", "--html", tmp_path / "x.html").exit_code == 0


def test_a_cut_off_recording_is_explained_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes((RECORDINGS / "v-e1.jsonl").read_bytes()[:-30])
    result = run(path)
    assert result.exit_code == 0
    assert "cut off" in result.stdout
    assert "not in the recording" in result.stdout


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    result = run("v-e1", "--html", tmp_path / "no" / "x.html")
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr


# -- nothing recorded acts -------------------------------------------------------------------------


class Tags(HTMLParser):
    """Every element and attribute a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def test_recorded_text_never_becomes_markup(tmp_path: Path) -> None:
    tame, evil = record(tmp_path / "a.jsonl", 2, "tame", True), record(tmp_path / "b.jsonl", 2, EVIL, True)
    pages = [render(tell(recording, 0, 9)) for recording in (tame, evil)]
    assert Tags(pages[0]).tags == Tags(pages[1]).tags
    assert Tags(pages[0]).tags.count("script") == 2
    assert "alert(1)" in pages[1]
    assert "<script>alert" not in pages[1]
    assert "<img" not in pages[1]


def test_the_data_of_the_page_are_the_story(tmp_path: Path) -> None:
    story = tell(record(tmp_path / "r.jsonl", 2, EVIL, True), 0, 9)
    inside = re.search(r'<script type="application/json" id="data">(.*?)</script>', render(story), re.DOTALL)
    assert json.loads(inside[1]) == json.loads(msgspec.json.encode(page_data(story)))
    assert json.loads(inside[1])["steps"][2]["message"].startswith("</script>")


def test_the_page_needs_nothing_from_elsewhere() -> None:
    recording = read_recording(RECORDINGS / "v-e1.jsonl")
    text = render(tell(recording, 0, 9))
    places = [value for name, value in Tags(text).attributes if name in ("src", "href", "action", "data")]
    assert sorted(places) == ["#step", "data:,"]
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttpRequest|innerHTML|eval\(", text)


def test_terminal_escapes_are_shown_not_sent(tmp_path: Path) -> None:
    record(tmp_path / "r.jsonl", 2, EVIL, True)
    result = run(tmp_path / "r.jsonl")
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert "alert(1)" in result.stdout


def test_a_page_holds_as_many_steps_as_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = record(tmp_path / "r.jsonl", 30)
    monkeypatch.setattr(page, "MAX_SLICES", 12)
    assert page_range(recording, 0, 29) == (0, 11)
    assert page_range(recording, 25, 29) == (25, 29)
    result = run(tmp_path / "r.jsonl", "--html", tmp_path / "r.html")
    assert "steps 0:11 of 0:29" in result.stderr


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a browser")
def test_a_browser_draws_the_step_asked_for(tmp_path: Path) -> None:
    run("v-e1", "--html", tmp_path / "p.html")
    browser = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    url = f"file://{tmp_path / 'p.html'}#step=3"
    done = subprocess.run([*browser, "--dump-dom", url], capture_output=True, text=True, timeout=120, check=True)
    assert "Step 3: 8 tokens in 3 slices" in done.stdout
    assert "10 → 14 → 12" in done.stdout
    assert 'aria-current="step"' in done.stdout
