"""Sequences whose KV does not come with them: from the common store to the bit, or the end they always had."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import Outcome, outcome_of, request
from kv_engines import FaultyMover, engine_with_store, long_tiny, serve
from kv_places import Place

from headrace.contract.errors import StoreError
from headrace.contract.handoff import HandedOver
from headrace.contract.request import Request
from headrace.contract.result import TokenDelta
from headrace.engine.hand_over import LOST_WORDS, Giver, Taker
from headrace.engine.local_hand_off import LocalHandOff
from headrace.engine.recall import Recall, lost
from headrace.engine.roles import RoleConfig, core_settings
from headrace.lab.replay import replay
from headrace.models.context import Model
from headrace.obs.events import Placed
from headrace.obs.recorder import Recorder
from headrace.obs.recording import read_recording

PROMPT = random.Random(3).choices(range(60), k=300)
DEADLINE_S = 60.0


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return long_tiny(request.param, tmp_path_factory.mktemp("long"), 40 if request.param == "gemma3" else None)


class BrokenPort(LocalHandOff):
    """Sequences arrive; what of their KV does not, ``breaks`` says."""

    def __init__(self) -> None:
        super().__init__()
        self.breaks = True

    def take(self) -> HandedOver | None:
        item = super().take()
        if item is None or not self.breaks:
            return item
        return replace(item, content=lost(StoreError("hand-off", "scripted")))


class Both:
    """A prompt engine and a completion engine in this thread, over one store in memory."""

    def __init__(self, model: Model, folder: Path, *, wrap: Callable[[Any], Any] | None = None, **limits: Any) -> None:
        self.place, self.port = Place(), BrokenPort()
        self.prompt, self.saves = engine_with_store(model, folder, store=lambda: self.place, role="prompt")
        wrapping = {} if wrap is None else {"wrap": wrap}
        self.completion, self.loads = engine_with_store(
            model, folder, store=lambda: self.place, role="completion", **wrapping, **limits
        )
        self.prompt._relay = Giver(self.port, self.prompt.worker)
        recall = Recall(self.loads, self.completion._observer, self.completion.intake.poke)
        self.completion._relay = Taker(self.port, self.completion.worker, self.completion._observer, recall=recall)
        self.deltas: dict[str, list[TokenDelta]] = {}

    def compute(self, item: Request) -> None:
        """The prompt, until its grains are stored."""
        self.prompt.submit(item)
        grains = len(item.prompt_token_ids) // 128 * len(self.saves.specs)
        self.until(lambda: self.ended(item) or (self.port.num_waiting > 0 and len(self.place.values) >= grains), 1, 0)

    def until(self, done: Callable[[], bool], prompt: int = 1, completion: int = 1) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not done():
            assert time.monotonic() < deadline
            for engine, turns in ((self.prompt, prompt), (self.completion, completion)):
                for delta in engine.tick() if turns else ():
                    self.deltas.setdefault(delta.request_id, []).append(delta)

    def ended(self, item: Request) -> bool:
        return any(delta.finish_reason for delta in self.deltas.get(item.request_id, ()))

    def outcome(self, item: Request) -> Outcome:
        self.until(lambda: self.ended(item))
        return outcome_of(self.deltas[item.request_id])

    def error(self, item: Request) -> str:
        self.until(lambda: self.ended(item))
        return str(self.deltas[item.request_id][-1].error)

    def close(self) -> None:
        self.until(lambda: self.prompt.quiet and self.completion.quiet)
        for engine, connector in ((self.prompt, self.saves), (self.completion, self.loads)):
            assert engine.core.num_used_blocks == connector.budget.taken_bytes == 0
            engine.close()


@pytest.fixture(scope="module")
def truth(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Outcome]:
    engine, _ = engine_with_store(model, tmp_path_factory.mktemp("none"))
    outcomes = {length: serve(engine, request(PROMPT[:length]))[0] for length in (60, 256, 300)}
    engine.close()
    return outcomes.__getitem__


@pytest.mark.parametrize("length", [60, 256, 300])
@pytest.mark.parametrize("budget", [16, 512])
def test_what_does_not_come_is_loaded_and_goes_on_to_the_bit(
    model: Model, truth: Callable[[int], Outcome], tmp_path: Path, length: int, budget: int
) -> None:
    both, beside = Both(model, tmp_path, token_budget=budget), request([5] * 20, max_tokens=60)
    both.port.breaks = False
    both.prompt.submit(beside)
    both.until(lambda: len(both.deltas.get(beside.request_id, ())) > 2)  # others decode meanwhile
    both.port.breaks = True
    both.compute(item := request(PROMPT[:length]))
    assert both.outcome(item).bits == truth(length).bits
    back = len(both.loads.specs) > 1  # behind a window a prompt does not end with a whole grain
    assert both.loads.counts()["hit_tokens"] == (length - back) // 128 * 128
    assert both.outcome(beside).finish_reason == "length"
    both.close()


def test_one_whose_giver_died_goes_on_where_it_was(
    model: Model, truth: Callable[[int], Outcome], tmp_path: Path
) -> None:
    both = Both(model, tmp_path)
    both.compute(item := request(PROMPT))
    dead = both.port.take()
    assert dead is not None
    for _ in range(2):  # told twice, and offered after all: it begins once
        both.completion.intake.lose(item, dead.output_ids)
    both.until(lambda: both.completion.core.num_unfinished == 1, 0)
    both.port.offer(dead)
    assert both.outcome(item).bits == truth(300).bits
    both.until(lambda: both.port.num_waiting == 0)
    both.close()


def test_where_the_store_lacks_it_the_request_ends_as_ever(model: Model, tmp_path: Path) -> None:
    both = Both(model, tmp_path)
    both.compute(item := request(PROMPT))
    both.place.dead = True
    assert both.error(item) == "its KV could not be taken over: hand-off: scripted"
    gone = request(PROMPT)
    both.completion.intake.lose(gone, (1,))
    assert both.error(gone) == LOST_WORDS
    both.close()


def test_without_a_store_nothing_is_recalled(model: Model, tmp_path: Path) -> None:
    both = Both(model, tmp_path)
    both.completion._relay._recall = None  # type: ignore[union-attr]
    both.compute(item := request(PROMPT))
    assert both.error(item) == "its KV could not be taken over: hand-off: scripted"
    both.close()


@pytest.mark.parametrize("fault", ["refuse_writes", "break_writes"])
def test_a_load_that_breaks_ends_its_request_and_all_later_recalls(model: Model, tmp_path: Path, fault: str) -> None:
    movers: list[FaultyMover] = []

    def wrap(inner: Any) -> FaultyMover:
        movers.append(FaultyMover(inner))
        return movers[0]

    both = Both(model, tmp_path, wrap=wrap)
    setattr(movers[0], fault, True)
    both.compute(item := request(PROMPT))
    assert "could not be loaded: scripted" in both.error(item)
    assert both.loads.off
    setattr(movers[0], fault, False)
    both.compute(again := request(PROMPT))
    assert both.error(again) == "its KV could not be taken over: hand-off: scripted"
    both.port.breaks = False
    both.prompt.submit(whole := request(PROMPT))
    assert both.outcome(whole).finish_reason == "length"
    both.close()


def test_an_end_while_it_is_fetched_leaves_nothing_behind(model: Model, tmp_path: Path) -> None:
    both = Both(model, tmp_path)
    both.compute(item := request(PROMPT))
    both.place.gate.clear()
    both.until(lambda: both.port.num_waiting == 0, 0)
    both.completion.abort(item.request_id)
    both.until(lambda: both.ended(item), 0)
    assert both.deltas[item.request_id][-1].finish_reason == "abort"
    both.place.gate.set()
    both.until(lambda: not both.completion._relay._recall._calls)  # type: ignore[union-attr]
    both.close()


def test_what_was_fetched_for_nothing_is_given_back(
    model: Model, truth: Callable[[int], Outcome], tmp_path: Path
) -> None:
    both = Both(model, tmp_path)
    both.compute(first := request(PROMPT))
    both.prompt.submit(second := request(PROMPT))  # of the same prompt: what the first one loads serves it too
    both.until(lambda: both.port.num_waiting == 2, 1, 0)
    both.place.gate.clear()
    both.until(lambda: both.port.num_waiting == 0, 0)
    both.until(lambda: len(both.completion._relay._recall._calls) == 2, 0)  # type: ignore[union-attr]
    both.place.gate.set()
    assert [both.outcome(item).bits for item in (first, second)] == [truth(300).bits] * 2
    both.close()


def test_a_recording_of_it_replays(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    groups = [(int(group.kind), group.window) for group in model.kv_layout.groups]
    duty = core_settings(RoleConfig("completion"))
    settings = {"num_blocks": 200, "block_size": 16, "groups": groups, "max_model_len": model.max_positions, **duty}
    both = Both(model, tmp_path, observer=Recorder.open(path, settings))
    both.compute(item := request(PROMPT))
    assert both.outcome(item).finish_reason == "length"
    both.close()
    recording = read_recording(path)
    assert [event.from_cache for event in recording.events if isinstance(event, Placed)] == [True]
    report = replay(recording)
    assert report.ok, str(report.difference)
