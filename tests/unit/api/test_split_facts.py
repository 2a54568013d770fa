"""What a front may promise of two engines whose pools were sized one by one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from headrace.api import split_processes
from headrace.config import resolve


@pytest.mark.parametrize("lengths", [(952, 950), (950, 952)])
def test_the_shorter_context_of_two_engines_counts(monkeypatch: pytest.MonkeyPatch, lengths: tuple[int, int]) -> None:
    infos = tuple({"max_model_len": length, "vocab_size": 9} for length in lengths)
    monkeypatch.setattr(split_processes, "ProcessPair", lambda *_: SimpleNamespace(infos=infos))
    pair, facts = split_processes.connect_pair(resolve({"runtime": {"num_threads": 2}}))
    pair.on_close()
    assert facts == {"max_model_len": 950, "vocab_size": 9}
