"""Stores and quotas that hold less than what is asked for: beginnings stay, and nothing is written to be evicted."""

from __future__ import annotations

from pathlib import Path

from kv_values import key_of, payload_of

from headrace.kv import reclaim
from headrace.kv.local import LocalStore
from headrace.kv.records import RecordKind, RecordSpec
from headrace.kv.segment import PAGE

SPAN = 12_288  # what a value of 5000 bytes takes
ROOMY = 64 << 20
GRAINS = 8
TENANT = b"t" * 16
SPEC = RecordSpec(RecordKind.BLOCK, (0,), 5000)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def ask(store: LocalStore, prompt: int, *, grains: int = GRAINS) -> tuple[int, int]:
    """One request: what is found of its chain, and how many values are written after it was computed."""
    keys = [key_of(1000 * prompt + grain) for grain in range(grains)]
    hits, before = store.match(keys, [SPEC]).grains, store.counts.puts
    for depth in range(hits, grains):
        store.put(keys[depth], 0, payload_of(keys[depth]), tenant=TENANT, depth=depth)
    return hits, store.counts.puts - before


def held(store: LocalStore, prompt: int) -> list[int]:
    return [g for g in range(GRAINS) if store.has([(key_of(1000 * prompt + g), 0)])[0]]


def opened(folder: Path, **limits: int) -> LocalStore:
    capacity = limits.pop("capacity", ROOMY)
    return LocalStore(folder, capacity, segment_bytes=2 * SPAN, clock=Clock(), **limits)  # type: ignore[arg-type]


def test_a_quota_of_half_a_prompt_keeps_its_beginning(tmp_path: Path) -> None:
    store = opened(tmp_path, tenant_quota_bytes=GRAINS // 2 * SPAN)
    assert ask(store, 1) == (0, 4)
    assert ask(store, 1) == (4, 0)
    assert ask(store, 1) == (4, 0)
    assert store.counts.evicted == 0
    store.close()


def test_two_prompts_in_turn_under_half_a_prompt_s_quota_both_have_hits(tmp_path: Path) -> None:
    store = opened(tmp_path, tenant_quota_bytes=GRAINS // 2 * SPAN)
    ask(store, 1)
    ask(store, 2)
    hits, _ = ask(store, 1)
    assert hits > 0
    assert held(store, 1) == list(range(len(held(store, 1))))
    assert held(store, 2) == list(range(len(held(store, 2))))
    store.close()


def test_a_store_smaller_than_two_prompts_loses_their_ends(tmp_path: Path) -> None:
    store = opened(tmp_path, capacity=14 * SPAN)
    assert ask(store, 1) == (0, GRAINS)
    ask(store, 2)
    first, second = held(store, 1), held(store, 2)
    assert 0 < len(first) < GRAINS
    assert first == list(range(len(first)))
    assert second == list(range(len(second)))
    assert ask(store, 1)[0] == len(first)
    store.close()


def test_a_store_smaller_than_one_prompt_settles(tmp_path: Path) -> None:
    store = opened(tmp_path, capacity=6 * SPAN)
    _, written = ask(store, 1)
    for _ in range(3):
        hits, again = ask(store, 1)
        assert hits == written > 0
        assert again == 0
    assert store.counts.evicted == 0
    store.close()


def test_what_is_stored_late_is_as_old_as_what_asked_for_it(tmp_path: Path) -> None:
    """The beginning of a prompt is written first, yet its end leaves first: also among values nobody ever read."""
    store = opened(tmp_path)
    ask(store, 1)
    ask(store, 2)
    assert reclaim.evict(store, 5 * SPAN) == 5
    older, newer = held(store, 1), held(store, 2)
    assert older == list(range(len(older)))
    assert newer == list(range(len(newer)))
    assert len(older) < len(newer)
    store.close()


def test_what_was_refused_is_not_ranked_again_for_each_deeper_grain(tmp_path: Path) -> None:
    store = opened(tmp_path, tenant_quota_bytes=4 * SPAN)
    ranked, calls = store.index.all_entries, []
    store.index.all_entries = lambda: calls.append(1) or ranked()  # type: ignore[method-assign, func-returns-value]
    ask(store, 1, grains=100)
    assert len(calls) < 5
    store.close()


def test_the_foot_of_an_open_segment_is_counted(tmp_path: Path) -> None:
    """A value that needs a segment of its own closes another, which grows by its foot."""
    capacity = 11 * PAGE
    store = LocalStore(tmp_path, capacity, segment_bytes=4 * PAGE)
    for number in range(1, 4):  # with head and foot, a segment each
        store.put(key_of(number), 0, payload_of(key_of(number), 100))
        assert sum(path.stat().st_size for path in store.segments.iterdir()) <= capacity - PAGE  # the open one's foot
    store.close()
    assert sum(path.stat().st_size for path in store.segments.iterdir()) <= capacity


def test_what_somebody_removed_takes_no_room(tmp_path: Path) -> None:
    store = opened(tmp_path, capacity=24 * SPAN)
    for prompt in range(4):
        ask(store, prompt)
    for path in (tmp_path / "segments").glob("*.seg"):
        path.unlink()
    for prompt in range(4, 8):
        ask(store, prompt)
    files = {int(path.stem) for path in (tmp_path / "segments").iterdir()}
    assert set(store.index.all_segments()) == files
    assert held(store, 7)[:4] == [0, 1, 2, 3]
    store.close()
