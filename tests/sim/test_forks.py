"""Choices of one prompt in a voted engine: forked when the first is prefilled, added when that moment was missed."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace._core import Scheduler
from headrace.contract.plan import StepKind
from headrace.contract.request import Request, SamplingParams
from headrace.contract.result import TokenDelta
from headrace.engine.engine import Engine
from headrace.engine.group import Loads
from headrace.engine.roles import RoleConfig, core_settings, make_cadence
from headrace.lab.replay import replay
from headrace.obs.recorder import Recorder
from headrace.obs.recording import read_recording
from headrace.worker.fake import FakeWorker, rolling_token

PROMPT = list(range(30))


def expected(count: int) -> list[int]:
    tokens = list(PROMPT)
    for _ in range(count):
        tokens.append(rolling_token(tokens))
    return tokens[len(PROMPT) :]


class Watched:
    """A voted engine whose plans are kept."""

    def __init__(self, overlap: bool = True, record: Path | None = None, role: str = "normal") -> None:
        config = RoleConfig(role=role)
        settings = {"num_blocks": 100, "block_size": 4, "max_model_len": 200, "token_budget": 16}
        settings |= core_settings(config)
        observer = None if record is None else Recorder.open(record, settings)
        cadence = make_cadence(config)
        self.engine = Engine(Scheduler(**settings), FakeWorker(), cadence=cadence, overlap=overlap, observer=observer)
        self.prefilled: list[int] = []
        self.deltas: list[TokenDelta] = []
        plan = cadence.plan

        def seen(core: Scheduler) -> object:
            made = plan(core)
            if made.kind == StepKind.PREFILL or role == "unified":
                self.prefilled += made.seq_ids.tolist()
            return made

        cadence.plan = seen

    def run(self, turns: int = 60) -> None:
        for _ in range(turns):
            self.deltas += self.engine.tick()

    def tokens(self, name: str) -> list[int]:
        return [token for delta in self.deltas if delta.request_id == name for token in delta.token_ids]


def choices(count: int, max_tokens: int = 6, **sampling: object) -> list[Request]:
    params = [SamplingParams(max_tokens=max_tokens, seed=k, **sampling) for k in range(count)]
    return [
        Request(request_id=f"c{k}", prompt_token_ids=PROMPT, sampling=params[k], shares="c0" if k else "", arrival=k)
        for k in range(count)
    ]


@pytest.mark.parametrize("overlap", [True, False])
def test_one_prefill_serves_all_choices(tmp_path: Path, overlap: bool) -> None:
    watched = Watched(overlap, tmp_path / "forks.jsonl")
    for request in choices(4):
        watched.engine.submit(request)
    watched.run()
    assert set(watched.prefilled) == {1}
    assert [watched.tokens(f"c{k}") for k in range(4)] == [expected(6)] * 4
    assert watched.engine.quiet
    assert watched.engine.core.num_used_blocks == 0
    watched.engine.close()
    recording = read_recording(tmp_path / "forks.jsonl")
    assert replay(recording).ok


def test_a_choice_that_comes_too_late_is_a_request_like_any_other() -> None:
    watched = Watched()
    first, second, third = choices(3, max_tokens=40)
    watched.engine.submit(first)
    watched.run(6)
    watched.engine.submit(second)
    watched.run(200)
    watched.engine.submit(third)  # the first has ended
    watched.run(200)
    assert set(watched.prefilled) == {1, 2, 3}
    assert [watched.tokens(f"c{k}") for k in range(3)] == [expected(40)] * 3


def test_a_sibling_that_ends_at_once_leaves_the_others_their_way() -> None:
    watched = Watched()
    for request in choices(3, max_tokens=1):
        watched.engine.submit(request)
    watched.run()
    assert [watched.tokens(f"c{k}") for k in range(3)] == [expected(1)] * 3
    watched = Watched()
    for request in choices(3, max_tokens=50):
        watched.engine.submit(request)
    watched.engine.tick()  # half of the prompt
    watched.engine.abort("c0")
    watched.run(300)
    assert [len(watched.tokens(f"c{k}")) for k in range(3)] == [0, 50, 50]


def test_who_waits_for_its_sibling_can_be_aborted_and_closed() -> None:
    watched = Watched()
    for request in choices(3, max_tokens=50):
        watched.engine.submit(request)
    watched.engine.tick()
    watched.engine.abort("c1")
    watched.deltas += watched.engine.tick()
    watched.deltas += watched.engine.close()
    ends = [(delta.request_id, delta.finish_reason) for delta in watched.deltas if delta.finish_reason]
    assert sorted(ends) == [("c0", "abort"), ("c1", "abort"), ("c2", "abort")]


@pytest.mark.parametrize("case", ["prompt_logprobs", "other limits", "other prompt", "mixed"])
def test_what_cannot_share_is_prefilled(case: str) -> None:
    watched = Watched(role="unified" if case == "mixed" else "normal")
    first, second = choices(2, **({"prompt_logprobs": 0} if case == "prompt_logprobs" else {}))
    if case == "other limits":
        second = choices(2, max_tokens=7)[1]
    if case == "other prompt":
        second = Request(request_id="c1", prompt_token_ids=[5], sampling=second.sampling, shares="c0")
    watched.engine.submit(first)
    watched.engine.submit(second)
    watched.run()
    assert {1, 2} <= set(watched.prefilled)


def test_choices_stay_on_one_rank() -> None:
    loads = Loads(3)
    other = Request(request_id="x", prompt_token_ids=[1], sampling=SamplingParams())
    assert [loads.place(request) for request in (*choices(3), other)] == [0, 0, 0, 1]
