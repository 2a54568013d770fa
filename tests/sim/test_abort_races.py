"""An abort that comes so soon that the loop has not seen its request: it must still find it."""

from __future__ import annotations

from typing import Any

import pytest

from headrace._core import Scheduler
from headrace.contract.request import Request, SamplingParams
from headrace.engine.engine import Engine
from headrace.worker.fake import FakeWorker


def request(name: str, tokens: int) -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=[1, 2, 3],
        sampling=SamplingParams(max_tokens=tokens, seed=0, temperature=0.0),
    )


class Interrupted(FakeWorker):
    """While a step is under way, a client sends a request and goes away at once."""

    engine: Engine
    late: str | None = "late"

    def collect(self, handle: Any, timeout_s: float) -> Any:
        if self.late is not None:
            self.engine.submit(request(self.late, 200))
            self.engine.abort(self.late)
            self.late = None
        return super().collect(handle, timeout_s)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_request_that_came_and_went_during_a_step_does_not_run(overlap: bool) -> None:
    worker = Interrupted()
    core = Scheduler(num_blocks=100, block_size=4, token_budget=64, max_model_len=600)
    engine = Engine(core, worker, overlap=overlap)
    worker.engine = engine
    engine.submit(request("first", 5))
    deltas = []
    for _ in range(20):
        deltas += engine.tick()
    ends = {delta.request_id: delta.finish_reason for delta in deltas if delta.finish_reason is not None}
    assert ends == {"first": "length", "late": "abort"}
    assert not any(delta.token_ids for delta in deltas if delta.request_id == "late")
    assert engine.idle
    assert engine.core.num_used_blocks == 0


def test_an_end_stays_with_its_request() -> None:
    engine = Engine(Scheduler(num_blocks=10, block_size=4, token_budget=64, max_model_len=32), FakeWorker())
    engine.submit(request("a", 5))
    engine.abort("a")
    engine.abort("unknown")
    assert engine.intake.drain_ends() == [("unknown", "abort")]
    assert [one.request_id for one in engine.intake.drain_requests()] == ["a"]
    assert engine.intake.drain_ends() == [("a", "abort")]
    assert engine.intake.drain_ends() == []
