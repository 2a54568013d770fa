"""Tokens drawn by the head that keeps no logits are those drawn from logits, alone, in batches and beside others."""

from __future__ import annotations

import random
from typing import Any

import pytest
from harness import make_engine, request, run

from headrace.contract.request import Request
from headrace.models.context import Model
from headrace.worker.worker import Worker


def requests(**sampling: Any) -> list[Request]:
    rng = random.Random(8)
    prompts = [[rng.randrange(61) for _ in range(rng.randrange(1, 40))] for _ in range(6)]
    return [request(prompt, eos_ids=(2,), **sampling) for prompt in prompts]


def ids_of(model: Model, asked: list[Request], monkeypatch: pytest.MonkeyPatch, **limits: Any) -> tuple[Any, set[bool]]:
    """Ids per request, and whether steps had logits: True for those that had none."""
    seen: set[bool] = set()
    launch = Worker.launch_forward

    def spy(self: Worker, *arguments: Any) -> Any:
        handle = launch(self, *arguments)
        if handle.batch.discard.size and not handle.batch.discard.all():
            seen.add(handle.greedy)
        return handle

    monkeypatch.setattr(Worker, "launch_forward", spy)
    engine = make_engine(model, token_budget=24, **limits)
    try:
        return [outcome.token_ids for outcome in run(engine, asked)], seen
    finally:
        engine.close()


@pytest.mark.parametrize("graphs", ["full", "piecewise", "none"])
@pytest.mark.parametrize("overlap", [False, True])
def test_ids_are_those_of_logits(model: Model, graphs: str, overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, with_logits = ids_of(model, requests(), monkeypatch, graphs="none", overlap=False)
    assert with_logits == {False}
    limits = {"graphs": graphs, "overlap": overlap}
    drawn, without = ids_of(model, requests(logprobs=None), monkeypatch, **limits)
    assert without == {True}
    assert drawn == expected
    mixed = [*requests(logprobs=None)[:3], *requests(logprobs=0)[3:]]
    assert ids_of(model, mixed, monkeypatch, **limits)[0] == expected


@pytest.mark.parametrize(
    "wish",
    [
        {"temperature": 0.5},
        {"logprobs": 0},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.1},
        {"frequency_penalty": 0.1},
        {"min_tokens": 2},
        {"logit_bias": {1: 1.0}},
        {"allowed_token_ids": [1, 2, 3]},
        {"banned_token_ids": [1]},
    ],
    ids=lambda wish: next(iter(wish)),
)
def test_whoever_needs_logits_gets_them(wish: dict[str, Any], tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    [asked] = requests(**{"logprobs": None} | wish)[:1]
    assert ids_of(tiny("llama"), [asked], monkeypatch)[1] == {False}
