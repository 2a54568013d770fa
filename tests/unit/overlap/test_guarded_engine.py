"""The guard in the true engine: a wait hidden in a launch ends the requests with words, a declared one does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import harness
import pytest
import torch
from harness import make_engine, request, run

from headrace.contract.plan import SequenceStart, StepPlan
from headrace.models.context import Model
from headrace.worker.step import StepHandle
from headrace.worker.worker import Worker


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder: Path = tmp_path_factory.mktemp("tiny")
    return harness.load_tiny("llama", folder)


def waits_for_its_forward(worker: Worker, declared: bool) -> None:
    launch = worker.launch_sample

    def slow(handle: StepHandle) -> None:
        assert handle.forward is not None
        if declared:
            with worker._guard.allowed("a test that wants to"):
                handle.forward.result(10)
        else:
            handle.forward.result(10)
        launch(handle)

    worker.launch_sample = slow  # type: ignore[method-assign]


def reads_the_device(worker: Worker, declared: bool) -> None:
    launch = worker._launch_forward

    def curious(plan: StepPlan, starts: Sequence[SequenceStart]) -> StepHandle:
        if declared:
            with worker._guard.allowed("a test that wants to"):
                torch.zeros(2).tolist()
        else:
            torch.zeros(2).tolist()
        return launch(plan, starts)

    worker._launch_forward = curious  # type: ignore[method-assign]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("spoil", "words"), [(waits_for_its_forward, "result() of a launch"), (reads_the_device, "Tensor.tolist()")]
)
def test_a_hidden_wait(model: Model, spoil: Callable[[Worker, bool], None], words: str, overlap: bool) -> None:
    expected = None
    for declared in (True, False):
        engine: Any = make_engine(model, overlap=overlap)
        spoil(engine.worker, declared)
        engine.submit(request([1, 2, 3], max_tokens=3))
        deltas: list[Any] = []
        while engine.intake.busy or not engine.idle:
            deltas += engine.tick()
        tokens = [token for delta in deltas for token in delta.token_ids]
        engine.close()
        if declared:
            expected = tokens
            assert (len(tokens), deltas[-1].finish_reason) == (3, "length")
        else:
            assert (tokens, deltas[-1].finish_reason) == ([], "error")
            assert f"{words} inside the" in deltas[-1].error
            assert "launch of step 0" in deltas[-1].error
    assert expected


def test_every_step_of_a_real_run_was_measured(model: Model) -> None:
    engine = make_engine(model)
    run(engine, [request([1, 2, 3], max_tokens=9) for _ in range(3)])
    stats = engine.stats
    engine.close()
    assert sum(stats.overlap.bubble_counts) == stats.steps > 5
    assert stats.overlap.busy_ns > 0
    assert stats.overlap.host_ns > 0
    assert 0.0 <= stats.overlap.overlap_ratio <= 1.0
