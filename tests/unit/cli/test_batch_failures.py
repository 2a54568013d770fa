"""``generate``: what the input is at fault for is filed; what the engine failed on is taken again by the next run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from headrace.api.output import CompletionOutput, RequestOutput
from headrace.api.prompts import Prepared, Preparer
from headrace.cli.batch.journal import Journal
from headrace.cli.batch.lines import Line
from headrace.cli.batch.loop import Batch, Tally
from headrace.cli.generate import conclude
from headrace.contract.request import SamplingParams

QUIET: Any = SimpleNamespace(asked=False)


class PretendedLLM:
    """Ends each prompt as the test says, by its first id."""

    tokenizer = None

    def __init__(self, ends: dict[int, dict[str, Any]]) -> None:
        self._ends = ends
        self.prepare = Preparer(None, 100, 64).prepare
        self.taken: list[int] = []

    def feed(self, prepared: Iterable[Prepared], window: int) -> Iterator[list[RequestOutput]]:  # noqa: ARG002
        for one in prepared:
            self.taken.append(one.token_ids[0])
            choice = CompletionOutput(0, **{"finish_reason": "stop"} | self._ends.get(one.token_ids[0], {}))
            yield [RequestOutput(one.request_id, None, one.token_ids, [choice], finished=True)]


def run(out: Path, ends: dict[int, dict[str, Any]]) -> tuple[list[int], Tally, list[dict[str, Any]]]:
    """What was taken, the tally, and the records afterwards."""
    llm: Any = PretendedLLM(ends)
    wishes = [json.dumps({"prompt_token_ids": [i]}).encode() for i in range(1, 6)]
    with Journal(out) as journal:
        batch = Batch(llm, journal, SamplingParams(max_tokens=1), 8)
        batch.run([Line(i, wish, len(wish)) for i, wish in enumerate(wishes, 1)], QUIET, lambda _: None)
    return llm.taken, batch.tally, [json.loads(line) for line in out.read_text().splitlines()]


FAILURES = {
    2: {"finish_reason": "error", "error": "regex: does not compile", "error_field": "regex"},
    3: {"finish_reason": "error", "error": "the step failed"},
    4: {"finish_reason": "abort"},
    5: {"finish_reason": "error", "error": "queue: full", "error_field": "queue"},
}


def test_lines_that_the_engine_failed_on_are_taken_again(tmp_path: Path) -> None:
    taken, tally, filed = run(tmp_path / "out.jsonl", FAILURES)
    assert taken == [1, 2, 3, 4, 5]
    assert (tally.num_completed, tally.num_failed, tally.num_unfiled) == (1, 4, 3)
    assert tally.first_failure == "the step failed"
    assert [one["line"] for one in filed] == [1, 2]
    assert filed[1]["error"] == {"field": "regex", "message": "does not compile"}
    taken, tally, filed = run(tmp_path / "out.jsonl", {})
    assert taken == [3, 4, 5]
    assert (tally.num_completed, tally.num_failed, tally.num_skipped) == (3, 0, 2)
    assert [one["line"] for one in filed] == [1, 2, 3, 4, 5]


def test_the_summary_says_that_another_run_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally(num_completed=1, num_failed=2, num_unfiled=2, first_failure="the step failed")
    report: Any = SimpleNamespace(as_json=False)
    with pytest.raises(typer.Exit) as end:
        conclude(tally, QUIET, Path("out.jsonl"), report)
    assert end.value.exit_code == 3
    told = capsys.readouterr().err
    assert "the engine failed on 2 of them: the step failed" in told
    assert "run the same command again" in told
