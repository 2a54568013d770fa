from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.text.stops import StopMatch, StopStrings
from headrace.contract.errors import InvalidRequest


def run(stops: list[str], pieces: list[str], include: bool = False) -> tuple[list[str], StopMatch | None]:
    matcher = StopStrings(stops, include_stop_str_in_output=include)
    out = [matcher.push(piece, token) for token, piece in enumerate(pieces)]
    return [*out, matcher.flush()], matcher.match


def test_nothing_of_a_stop_string_is_emitted() -> None:
    out, match = run(["DEFGHIJ"], ["ABC", "DEF", "G", "HI", "J", "K"])
    assert out == ["ABC", "", "", "", "", "", ""]
    assert match == StopMatch("DEFGHIJ", 4)


def test_held_text_is_released_when_it_is_no_stop() -> None:
    out, match = run(["DEFGHIJ"], ["DEF", "G", "HI", "X"])
    assert out == ["", "", "", "DEFGHIX", ""]
    assert match is None


def test_held_text_is_released_at_the_end() -> None:
    assert run(["DEFGHIJ"], ["aDEF", "G"]) == (["a", "", "DEFG"], None)


def test_the_stop_string_can_be_kept() -> None:
    out, match = run(["EF"], ["abE", "Fcd"], include=True)
    assert out == ["ab", "EF", ""]
    assert match == StopMatch("EF", 1)


def test_an_overlapping_start_is_not_lost() -> None:
    assert run(["aab"], ["a", "a", "a", "b"])[0] == ["", "", "a", "", ""]


def test_the_match_that_ends_first_wins_and_then_the_longest() -> None:
    assert run(["abcd", "bc"], ["abcd"])[1] == StopMatch("bc", 0)
    assert run(["bc", "abc"], ["xabc"]) == (["x", ""], StopMatch("abc", 0))


def test_without_stop_strings_everything_passes() -> None:
    assert run([], ["a", "b"]) == (["a", "b", ""], None)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="stop"):
        StopStrings(["x", ""])


WORDS = st.text("ab", min_size=1, max_size=4)


@given(stops=st.lists(WORDS, max_size=3), pieces=st.lists(st.text("abc", max_size=4)), include=st.booleans())
def test_agrees_with_a_search_of_the_whole_text(stops: list[str], pieces: list[str], include: bool) -> None:
    text = "".join(pieces)
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    out, match = run(stops, pieces, include)
    if not ends:
        assert (match, "".join(out)) == (None, text)
        return
    end, _, stop = min(ends)
    token = next(i for i in range(len(pieces)) if len("".join(pieces[: i + 1])) >= end)
    assert match == StopMatch(stop, token)
    assert "".join(out) == text[: end if include else end - len(stop)]


@given(pieces=st.lists(st.text("ab", max_size=3)))
def test_never_emits_what_a_stop_could_still_claim(pieces: list[str]) -> None:
    matcher, stop, seen, emitted = StopStrings(["abab"]), "abab", "", ""
    for token, piece in enumerate(pieces):
        seen += piece
        emitted += matcher.push(piece, token)
        if matcher.match:
            return
        longest = max(n for n in range(len(stop)) if seen.endswith(stop[:n]))
        assert emitted == seen[: len(seen) - longest]
