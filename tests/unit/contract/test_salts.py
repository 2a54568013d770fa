"""Salts: nobody's text spells a joined one, and no two lists of parts give one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.contract.errors import InvalidRequest
from headrace.contract.picture import Picture, with_pictures
from headrace.contract.salts import MARK, joined, plain_salt

texts = st.text(alphabet=f"ab1:{MARK}", max_size=6)
parts = st.lists(texts, max_size=3)


@settings(max_examples=300, deadline=None)
@given(parts, parts)
def test_other_parts_make_another_salt(one: list[str], other: list[str]) -> None:
    assert (joined("k", *one) == joined("k", *other)) == (one == other)


@given(parts)
def test_no_caller_can_spell_a_joined_salt(them: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="cache_salt"):
        plain_salt("cache_salt", joined("tenant", *them))


def test_pictures_are_no_text_of_the_salt() -> None:
    """Place holders without pictures, under a salt that names the pictures, are another prompt."""
    seen = Picture(start=3, kinds=b"\0", grid=(1, 1), pixels=b"", id="id")
    salt = with_pictures("s", (seen,))
    assert with_pictures(salt, (seen,)) != salt
    assert salt not in {with_pictures(text, ()) for text in ("s", MARK.join(("s", "pictures", "3:id")))}
    with pytest.raises(InvalidRequest):
        plain_salt("cache_salt", salt)
