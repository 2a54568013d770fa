"""The worked examples shipped as recordings: replayed on the scheduler, and told with the exact numbers."""

import io
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console

from headrace import _core
from headrace.lab.explain.packing import pack
from headrace.lab.explain.story import SliceStory, StepStory, Story
from headrace.lab.explain.teller import tell
from headrace.lab.explain.text import print_recording
from headrace.lab.replay import Player, replay
from headrace.lab.worked_examples import EXAMPLES, RECORDINGS, write_all
from headrace.obs.recording import read_recording


def story_of(name: str) -> Story:
    recording = read_recording(RECORDINGS / f"{name}.jsonl")
    return tell(recording, 0, recording.num_steps - 1)


def slices_of(story: Story, step: int) -> dict[str, SliceStory]:
    return {story.name(piece.seq_id): piece for piece in story.steps[step].slices}


def text_of(name: str, first: int, last: int) -> str:
    out = io.StringIO()
    recording = read_recording(RECORDINGS / f"{name}.jsonl")
    print_recording(recording, first, last, Console(file=out, width=100, highlight=False))
    return out.getvalue()


def words(text: str, start: str) -> list[str]:
    """The cells of the first line that begins with ``start``."""
    return next(line.split() for line in text.splitlines() if line.strip().startswith(start))


@pytest.mark.parametrize("name", EXAMPLES)
def test_replay_reproduces_it(name: str) -> None:
    report = replay(read_recording(RECORDINGS / f"{name}.jsonl"))
    assert report.ok, report.difference
    assert report.num_steps >= 1


def without_version(path: Path) -> list[bytes]:
    head, *rest = path.read_bytes().splitlines()
    config = msgspec.json.decode(head)
    del config["headrace"]
    return [msgspec.json.encode(config), *rest]


def test_the_files_are_what_the_script_makes(tmp_path: Path) -> None:
    write_all(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {p.name for p in RECORDINGS.iterdir()}
    for path in tmp_path.iterdir():
        assert without_version(path) == without_version(RECORDINGS / path.name), path.name


def test_v_e1a_one_budget() -> None:
    story = story_of("v-e1")
    step, got = story.steps[2], slices_of(story, 2)
    assert list(got) == ["A", "B", "C"]
    assert [(p.before.num_tokens, p.before.num_computed) for p in got.values()] == [(10, 9), (10, 4), (5, 0)]
    assert all(piece.before.num_in_flight == 0 and piece.num_cached == 0 for piece in got.values())
    assert [piece.need for piece in got.values()] == [1, 6, 5]
    assert [piece.num_scheduled for piece in got.values()] == [1, 6, 1]
    assert [piece.planned.num_computed for piece in got.values()] == [10, 10, 1]
    assert [piece.clip for piece in got.values()] == ["whole", "whole", "token_budget"]
    assert (step.token_budget, step.token_budget_left, step.input_budget, step.input_budget_left) == (
        8,
        0,
        8,
        0,
    )
    for name in "AB":
        assert len(got[name].emitted or []) == 1
        assert (got[name].returned.num_tokens, got[name].returned.num_computed) == (11, 10)
    assert got["C"].emitted == []


def test_v_e1b_verification() -> None:
    piece = slices_of(story_of("v-e1"), 3)["A"]
    assert (piece.kind, piece.num_drafts, piece.need, piece.num_scheduled) == ("verify", 3, 4, 4)
    assert (piece.before.num_tokens, piece.before.num_computed) == (11, 10)
    assert piece.planned.num_computed == 14
    assert piece.num_valid == 2  # the last token and the accepted draft
    assert (piece.returned.num_tokens, piece.returned.num_computed) == (13, 12)
    assert piece.result == "emits 21, 9; 2 of 3 drafts rejected"


def test_v_e1c_two_budgets() -> None:
    story = story_of("v-e1-budgets")
    step, got = story.steps[0], slices_of(story, 0)
    assert (step.token_budget, step.input_budget) == (8, 12)
    assert [piece.num_scheduled for piece in got.values()] == [4, 4]
    assert [(p.token_budget_left, p.input_budget_left) for p in got.values()] == [(4, 6), (0, 0)]


def test_v_e2_a_hit_leaves_one_token() -> None:
    story = story_of("v-e2")
    piece = slices_of(story, 1)["Y"]
    assert (piece.num_cached, piece.num_scheduled, piece.first_position) == (16, 16, 16)
    assert [note.why for note in story.steps[1].notes] == ["16 tokens taken from the prefix cache"]


def test_v_e2_pool_trace() -> None:
    story = story_of("v-e2-pool")
    first, hit, reuse, again = story.steps
    assert [p.tables for p in first.slices] == [[[1, 2]], [[3]], [[4]]]
    # The hit on 3 leaves 5 and 4; 5 goes to the token that must be computed.
    assert (slices_of(story, 1)["R"].num_cached, slices_of(story, 1)["R"].tables) == (16, [[3, 5]])
    assert hit.free_queue == [4]
    # Freed, 3 went to the tail: the next two are 5 and 4, and 3 stays.
    assert slices_of(story, 2)["S"].tables == [[5, 4]]
    assert reuse.free_queue == [3]
    assert slices_of(story, 3)["T"].num_cached == 16
    assert slices_of(story, 3)["T"].tables[0][0] == 3
    assert again.outcome == "commit"


def test_twins_share_blocks_in_one_step() -> None:
    step = story_of("twins").steps[0]
    assert [piece.num_scheduled for piece in step.slices] == [40, 8]
    assert [piece.num_cached for piece in step.slices] == [0, 32]
    assert step.slices[0].tables[0][:2] == step.slices[1].tables[0][:2]


V_E3 = {
    "request_index": [0, 0, 1, 2, 2, 2],
    "positions": [4, 5, 10, 0, 1, 2],
    "query_start_loc": [0, 2, 3, 6],
    "seq_lens": [6, 11, 3],
    "logits_indices": [1, 2, 5],
    "slots": [8, 9, 22, 32, 33, 34],
}


def test_v_e3_packing() -> None:
    step = story_of("v-e3").steps[3]
    assert [piece.num_scheduled for piece in step.slices] == [2, 1, 3]
    assert [piece.before.num_computed for piece in step.slices] == [4, 10, 0]
    assert [piece.tables for piece in step.slices] == [[[7, 2]], [[1, 3, 5]], [[8]]]
    packing = pack(step, block_size=4)
    assert {name: getattr(packing, name) for name in V_E3} == V_E3


def step_with(*pieces: tuple[int, int, int, list[int]]) -> StepStory:
    """(first_position, num_scheduled, num_drafts, table) per slice; only what packing looks at."""
    story = story_of("v-e1").steps[2]
    like = story.slices[0]
    make = msgspec.structs.replace
    story.slices = [make(like, first_position=f, num_scheduled=q, num_drafts=d, tables=[t]) for f, q, d, t in pieces]
    return story


def test_packing_under_speculation_wants_the_logits_of_all_verified_rows() -> None:
    packing = pack(step_with((10, 4, 3, [1, 2, 3, 4]), (2, 1, 0, [5])), block_size=4)
    assert packing.logits_indices == [0, 1, 2, 3, 4]
    assert packing.slots == [14, 15, 16, 17, 22]


class Batch:
    """Arrays for the packer to fill, as a PackedBatch has."""

    def __init__(self, tokens: int, slices: int, logits: int, blocks: int) -> None:
        def ints(*shape: int) -> np.ndarray:
            return np.zeros(shape, dtype=np.int32)

        self.input_ids, self.request_index, self.positions = ints(tokens), ints(tokens), ints(tokens)
        self.query_start_loc, self.seq_lens, self.logits_indices = (
            ints(slices + 1),
            ints(slices),
            ints(logits),
        )
        self.discard = np.zeros(slices, dtype=np.uint8)
        self.prev_positions, self.slots, self.block_tables = (
            ints(slices),
            ints(1, tokens),
            ints(1, slices, blocks),
        )


@pytest.mark.parametrize("name", EXAMPLES)
def test_packing_told_is_the_packing_done(name: str) -> None:
    recording = read_recording(RECORDINGS / f"{name}.jsonl")
    steps = {step.step: step for step in tell(recording, 0, recording.num_steps).steps}
    block_size = recording.config.core["block_size"]
    player, rows = Player(recording), _core.RowTable(block_size, 1)
    for index in range(len(recording.events)):
        result, difference = player.play(index)
        assert difference is None
        if isinstance(result, _core.CommitResult):
            for i, seq_id in enumerate(result.seq_ids.tolist()):
                rows.append(seq_id, np.array(result.tokens[result.offsets[i] : result.offsets[i + 1]]))
        if not isinstance(result, _core.StepPlan):
            continue
        rows.apply(result)
        num_logits, max_blocks = rows.sizes(result)
        batch = Batch(result.total_tokens, len(result.seq_ids), num_logits, max_blocks)
        rows.pack(result, batch)
        told = pack(steps[result.step], block_size)
        for field in (*V_E3, "discard"):
            assert getattr(told, field) == getattr(batch, field).reshape(-1).tolist(), (result.step, field)


def test_the_text_shows_the_numbers_of_v_e1() -> None:
    text = text_of("v-e1", 2, 3)
    assert words(text, "A ") == ["A", "decode", "1/1", "9", "9→10→10", "10→10→11", "0→1→0", "0→1→0", "7/7"]
    assert words(text, "B ") == ["B", "prefill", "6/6", "4–9", "4→10→10", "10→10→11", "0→6→0", "0→1→0", "1/1"]
    assert words(text, "C ") == ["C", "prefill", "1/5", "0", "0→1→1", "5→5→5", "0→1→0", "0→0→0", "0/0"]
    assert "C: 1 of 5: the token budget was used up" in text
    verified = text_of("v-e1", 3, 3)
    assert words(verified, "A      ")[1:6] == ["verify", "4/4", "10–13", "10→14→12", "11→11→13"]
    assert "2 of 3 drafts rejected" in verified


def test_the_text_of_one_step_shows_its_packing() -> None:
    text = text_of("v-e3", 3, 3)
    for field, values in V_E3.items():
        assert f"{field:<16} [{', '.join(map(str, values))}]" in text


def test_the_text_keeps_to_100_columns() -> None:
    for name in EXAMPLES:
        assert max(map(len, text_of(name, 0, 99).splitlines())) <= 100
