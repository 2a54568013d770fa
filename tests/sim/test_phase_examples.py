"""The worked examples of the phased discipline, through the real core, with exactly its numbers."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from phase_group import Rank
from rich.console import Console

from headrace._core import StepCost, choose_drafts
from headrace.contract.plan import Clip, Note, StepKind
from headrace.engine.phase_voted import PhaseVoted
from headrace.lab.explain.teller import tell
from headrace.lab.explain.text import print_recording
from headrace.lab.phase_examples import decode_order
from headrace.lab.replay import replay
from headrace.lab.worked_examples import RECORDINGS
from headrace.obs.recording import read_recording
from headrace.worker.verify import choose_drafts as choose_on_device

A, B = 0, 1


def counts(rank: Rank, seq_id: int) -> tuple[int, int]:
    """(computed, committed)"""
    seen = rank.core.inspect(seq_id)
    return seen["num_computed"], seen["num_tokens"]


def test_d_e1() -> None:
    """One rank, NORMAL, no drafts, no overlap; A has a prompt of 6, B of 3; prefill budget 16."""
    rank = Rank(0, 1, {}, token_budget=16)
    rank.add(A, list(range(6)), 16)
    rank.add(B, list(range(50, 53)), 16)
    rank.cadence = PhaseVoted()  # on its own: it asks nobody
    plan = rank.cadence.plan(rank.core)
    assert plan.kind == StepKind.PREFILL
    assert plan.num_scheduled.tolist() == [6, 3]
    assert plan.total_tokens == 9
    rank.commit(plan)
    assert [counts(rank, x) for x in (A, B)] == [(6, 7), (3, 4)]

    plan = rank.cadence.plan(rank.core)
    assert plan.kind == StepKind.DECODE
    assert plan.num_scheduled.tolist() == [1, 1]
    assert (plan.num_computed + plan.num_scheduled).tolist() == [7, 4]  # key lengths
    assert plan.total_tokens == 2
    rank.commit(plan)
    assert [counts(rank, x) for x in (A, B)] == [(7, 8), (4, 5)]


def test_d_order_example(tmp_path: Path) -> None:
    """Output lengths [2, 7, 5] sort to [7, 5, 2]; 2 is served first; the first victim is 7."""
    path = tmp_path / "order.jsonl"
    decode_order(path)
    recording = read_recording(path)
    *_, before, last = tell(recording, 0, recording.num_steps - 1).steps
    prompts = {"A": 6, "B": 5, "C": 11}
    named = {recording.name(piece.seq_id): piece for piece in before.slices}
    assert {name: piece.returned.num_tokens - prompts[name] for name, piece in named.items()} == {
        "C": 2,
        "A": 7,
        "B": 5,
    }
    assert before.num_free_blocks == 0
    # C comes first and needs a block; A, the longest, gives way for it, before it was served itself.
    assert [(recording.name(note.seq_id), note.note) for note in last.notes] == [("A", Note.PREEMPTED.name.lower())]
    assert {recording.name(piece.seq_id): len(piece.tables[0]) for piece in last.slices} == {"C": 4, "B": 3}
    # Those served go by total length, longest first: 13 and 10.
    assert [recording.name(piece.seq_id) for piece in last.slices] == ["C", "B"]
    assert [piece.before.num_tokens for piece in last.slices] == [13, 10]


@pytest.mark.parametrize("choose", [choose_drafts, choose_on_device], ids=["core", "device"])
def test_d_e3(choose) -> None:
    """The best total is 4: one draft of each is verified."""
    cost = StepCost(sizes=[2, 4, 6], times_ms=[1.0, 1.2, 2.0])
    raw = [[0.9, 0.5], [0.8, 0.25]]
    table = {
        2: (2.00, 1.0, 2.000),
        3: (2.90, 1.2, 2.417),
        4: (3.70, 1.2, 3.083),
        5: (4.15, 2.0, 2.075),
        6: (4.35, 2.0, 2.175),
    }
    for total, (expected, time_ms, speed) in table.items():
        choice = choose([2, 2], raw, StepCost(), total)
        got = choice if isinstance(choice, tuple) else (choice.total, choice.expected)
        assert got[0] == total
        assert got[1] == pytest.approx(expected, abs=1e-12)
        assert cost.time_ms(total, 2) == time_ms
        assert got[1] / time_ms == pytest.approx(speed, abs=5e-4)
    choice = choose([2, 2], raw, cost)
    total, drafts = (choice[0], choice[2].tolist()) if isinstance(choice, tuple) else (choice.total, choice.drafts)
    assert total == 4
    assert [1 + n for n in drafts] == [2, 2]


def text_of(name: str) -> str:
    out = io.StringIO()
    recording = read_recording(RECORDINGS / f"{name}.jsonl")
    print_recording(recording, 0, recording.num_steps - 1, Console(file=out, width=100, highlight=False))
    return out.getvalue()


@pytest.mark.parametrize("name", ["d-e1", "d-e3", "decode-order"])
def test_the_recordings_replay(name: str) -> None:
    report = replay(read_recording(RECORDINGS / f"{name}.jsonl"))
    assert report.ok, report.difference


def test_explain_tells_the_examples() -> None:
    recording = read_recording(RECORDINGS / "d-e3.jsonl")
    verified = tell(recording, 1, 1).steps[0]
    assert [(p.num_scheduled, p.num_drafts, p.clip) for p in verified.slices] == [
        (2, 1, Clip.VERIFICATION.name.lower())
    ] * 2
    text = text_of("d-e3")
    assert "drafts not worth verifying were left out" in text
    assert "drafts judged: 0.9, 0.5" in text
    assert "cost of steps known for 3 sizes" in text
    assert "A: preempted, gave back 3 blocks" in " ".join(text_of("decode-order").split())
