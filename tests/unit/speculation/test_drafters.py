"""Prompt lookup and the suffix automaton against a search that looks at everything."""

from __future__ import annotations

import random

import numpy as np
import pytest

from headrace.speculation.drafter import Wanted
from headrace.speculation.ngram import NgramDrafter
from headrace.speculation.suffix import Automaton, SuffixDrafter


def wanted(tokens: list[int], most: int = 5, seq_id: int = 1) -> Wanted:
    return Wanted(seq_id, np.array(tokens, dtype=np.int32), most)


def longest_repeat(tokens: list[int]) -> int:
    """Length of the longest end that also occurs ending earlier."""
    for length in range(len(tokens) - 1, 0, -1):
        tail = tokens[-length:]
        if any(tokens[i : i + length] == tail for i in range(len(tokens) - length)):
            return length
    return 0


def fed(drafter: NgramDrafter | SuffixDrafter, tokens: list[int], seq_id: int = 1) -> list[int]:
    """What is proposed after the tokens came in pieces."""
    cut = len(tokens) // 2
    drafter.begin(seq_id, np.array(tokens[:cut], dtype=np.int32))
    drafter.extend(seq_id, np.array(tokens[cut:], dtype=np.int32))
    [draft] = drafter.propose([wanted(tokens, seq_id=seq_id)])
    return draft.ids.tolist()


def test_ngram_takes_the_longest_match_and_of_those_the_latest() -> None:
    assert fed(NgramDrafter(2, 3), [1, 2, 3, 9, 7, 2, 3, 8, 5, 1, 2, 3]) == [9, 7, 2, 3, 8]
    assert fed(NgramDrafter(2, 2), [1, 2, 3, 9, 7, 2, 3, 8, 5, 1, 2, 3]) == [8, 5, 1, 2, 3]
    assert fed(NgramDrafter(2, 4), [1, 2, 3, 4, 5]) == []


@pytest.mark.parametrize("drafter", [NgramDrafter(2, 4), SuffixDrafter(2)])
def test_a_repetition_goes_on_repeating(drafter: NgramDrafter | SuffixDrafter) -> None:
    assert fed(drafter, [5, 1, 2, 3, 1, 2, 3]) == [1, 2, 3, 1, 2]
    drafter.end(1)


def test_the_automaton_finds_the_longest_repeat_of_random_texts() -> None:
    rng = random.Random(1)
    for _ in range(60):
        text: list[int] = []
        automaton = Automaton()
        for _ in range(60):
            text.append(rng.randrange(3))
            automaton.extend(text[-1])
            length, end = automaton.repeated()
            assert length == longest_repeat(text)
            assert end < len(text)
            assert text[end - length : end] == text[len(text) - length :]
        assert len(automaton.next) <= 2 * len(text)


def test_finished_sequences_are_looked_at_only_where_asked_for() -> None:
    story = list(range(100, 140))
    for memory, expected in ((0, []), (1000, story[10:15])):
        drafter = SuffixDrafter(2, memory)
        fed(drafter, story, seq_id=1)
        drafter.end(1)
        assert fed(drafter, [7, 7, 8, *story[:10]], seq_id=2) == expected


def test_the_memory_of_finished_sequences_is_bounded() -> None:
    drafter = SuffixDrafter(2, memory=500)
    rng = random.Random(2)
    for seq_id in range(40):
        fed(drafter, [rng.randrange(50) for _ in range(rng.randrange(2, 700))], seq_id)
        drafter.end(seq_id)
        assert len(drafter._shared.text) <= 500
        assert not drafter._own


def test_proposals_do_not_run_from_one_finished_sequence_into_the_next() -> None:
    drafter = SuffixDrafter(2, memory=100)
    for seq_id, text in enumerate(([1, 2, 3, 4], [5, 6, 7, 8])):
        fed(drafter, text, seq_id)
        drafter.end(seq_id)
    assert fed(drafter, [9, 1, 2, 3], seq_id=5) == [4]
