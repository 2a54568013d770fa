"""Compiled constraints that are kept: within their bytes, the last used; texts and failures never."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from extras import needs_compiler
from hypothesis import given
from hypothesis import strategies as st

from headrace.contract.errors import InvalidRequest
from headrace.contract.request import StructuredOutputs
from headrace.grammar.backend import Vocabulary
from headrace.grammar.compiler import GrammarPool
from headrace.grammar.kept import KeptGrammars

DEADLINE_S = 60.0
LARGE = 8 << 20


@given(st.integers(0, 30), st.lists(st.tuples(st.sampled_from(b"abcdef"), st.integers(0, 12))))
def test_the_limit_holds_and_the_least_lately_used_goes_first(limit: int, asked: list[tuple[int, int]]) -> None:
    kept, model = KeptGrammars[int](limit), list[tuple[bytes, int]]()  # the model: last used last
    for letter, size in asked:
        key = bytes([letter])
        known = dict(model).get(key)
        assert kept.get(key) == known
        model = [one for one in model if one[0] != key]
        kept.put(key, size, size)
        if size <= limit:
            model.append((key, size))
            while sum(one for _, one in model) > limit:
                model.pop(0)
        assert kept.num_bytes == sum(one for _, one in model) <= limit


def compiled(pool: GrammarPool, regex: str) -> object:
    return pool.request(StructuredOutputs(regex=regex)).future.result(DEADLINE_S).compiled


@needs_compiler
@pytest.mark.parametrize("limit", [0, 80_000, 10 << 30])
def test_a_pool_keeps_what_it_may(limit: int) -> None:
    pool = GrammarPool(lambda: Vocabulary([*(bytes([i]) for i in range(256)), b""], (256,)), cache_bytes=limit)
    first = compiled(pool, "a{1,9}")
    assert (compiled(pool, "a{1,9}") is first) is (limit > 0)
    for i in range(20):
        compiled(pool, f"[a-z]{{{i + 1}}}x")
        assert pool.kept_bytes <= limit
    assert (pool.kept_bytes > 0) is (limit > 0)
    assert (compiled(pool, "a{1,9}") is first) is (limit > 80_000)  # others took its room
    pool.close()


@needs_compiler
def test_texts_and_failures_are_not_kept() -> None:
    """Half of them fail; each is different and 8 MiB large."""
    pool = GrammarPool(lambda: Vocabulary([*(bytes([i]) for i in range(256)), b""], (256,)))
    before = 0
    for i in range(10):
        kind = {"$ref": "#/nope"} if i % 2 else {"type": "integer"}
        wanted = StructuredOutputs(json=kind | {"description": f"{i}{'x' * LARGE}"})
        failed = pool.request(wanted).future.exception(DEADLINE_S)
        assert isinstance(failed, InvalidRequest) is bool(i % 2)
        before = before if i > 1 else resident_bytes()
    del failed, wanted
    gc.collect()
    assert resident_bytes() - before < 4 * LARGE
    pool.close()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
