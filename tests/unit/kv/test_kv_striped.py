"""A store over twelve places: the code against plain arithmetic, faults of places, and a dictionary beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import rmtree

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from kv_places import Place
from kv_values import found, key_of, payload_of, put

from headrace.contract.errors import ConfigError, StoreError
from headrace.kv.crew import MOST_OPEN
from headrace.kv.local import LocalStore
from headrace.kv.opening import Errand, open_store_at
from headrace.kv.place import striped_places
from headrace.kv.records import RecordKind, RecordSpec
from headrace.kv.shares import DATA, HEAD_BYTES, SHARES, Code, read_share
from headrace.kv.striped import StripedStore

pytest.importorskip("pyeclib")

LENGTH = 5000
ROOMY_S = 60.0


class Stripes:
    """A store over twelve dictionaries. ``keeper(number, index)``: the place that keeps share ``index`` of a value."""

    def __init__(self, **limits: float) -> None:
        self.places = [Place() for _ in range(SHARES)]
        self.store = StripedStore(
            self.places, **({"hedge_s": ROOMY_S, "timeout_s": ROOMY_S, "put_grace_s": ROOMY_S} | limits)
        )

    def keeper(self, number: int, index: int) -> Place:
        return self.places[StripedStore._order(key_of(number))[index]]


def settle(store: StripedStore) -> None:
    """Waits until no place has anything left to do."""
    deadline = time.monotonic() + ROOMY_S
    while any(left._value < MOST_OPEN for left in store._crew._open):
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def stripes() -> Iterator[Stripes]:
    made = Stripes()
    yield made
    for place in made.places:
        place.gate.set()
    made.store.close()


# -- the code ---------------------------------------------------------------------------------------------------------


def times(a: int, b: int) -> int:
    """A product in GF(2^8) modulo x^8 + x^4 + x^3 + x^2 + 1."""
    product = 0
    for bit in range(8):
        product ^= (a << bit) if b >> bit & 1 else 0
    for bit in range(15, 7, -1):
        product ^= (0x11D << (bit - 8)) if product >> bit & 1 else 0
    return product


def inverse(a: int) -> int:
    return next(b for b in range(1, 256) if times(a, b) == 1)


def fragments_of(value: bytes) -> list[bytes]:
    key = key_of(1)
    shares = Code().cut(key, 0, np.frombuffer(value, np.uint8))
    read = [read_share(share, key, 0) for share in shares]
    return [share.fragment.tobytes() for share in read if share is not None]


def test_parity_is_the_cauchy_sum_of_the_data() -> None:
    """So that shares can be read without the library: 80 bytes of its own, then a tenth or sum_j data_j / (i ^ j)."""
    value = payload_of(key_of(1), 640).tobytes()
    bodies = [fragment[80:] for fragment in fragments_of(value)]
    assert len(bodies) == SHARES
    assert b"".join(bodies[:DATA]) == value
    for i in range(DATA, SHARES):
        wanted = bytearray(64)
        for j, body in enumerate(bodies[:DATA]):
            factor = inverse(i ^ j)
            wanted = bytearray(w ^ times(factor, b) for w, b in zip(wanted, body))
        assert bodies[i] == bytes(wanted)


@pytest.mark.parametrize("length", [1, 9, 10, 11, 4096, 65_537])
def test_any_ten_of_twelve_give_the_value(length: int) -> None:
    code, key = Code(), key_of(length)
    value = payload_of(key, length)
    shares = [read_share(share, key, 1) for share in code.cut(key, 1, value)]
    for a in range(SHARES):
        for b in range(a):
            left = {i: share for i, share in enumerate(shares) if i not in (a, b) and share is not None}
            joined = code.join(left)
            assert joined is not None
            assert np.array_equal(joined, value)
    assert code.join(dict(list(left.items())[:9])) is None


def test_a_share_that_is_not_what_it_says_is_none() -> None:
    key = key_of(1)
    share = Code().cut(key, 0, payload_of(key))[3]
    assert read_share(share, key, 0) is not None
    for at in [*range(HEAD_BYTES), HEAD_BYTES, HEAD_BYTES + 90, len(share) - 1]:
        broken = share.copy()
        broken[at] ^= 4
        assert read_share(broken, key, 0) is None
    assert read_share(share[:-1], key, 0) is read_share(share[:20], key, 0) is None
    assert read_share(share, key_of(2), 0) is read_share(share, key, 1) is None


# -- faults of places -------------------------------------------------------------------------------------------------


def test_two_killed_places_cost_nothing_and_a_damaged_third_is_refused(stripes: Stripes) -> None:
    assert put(stripes.store, 1)
    for index in (0, 11):
        stripes.keeper(1, index).dead = True
    assert found(stripes.store, 1)
    assert stripes.store.match([key_of(1)], [RecordSpec(RecordKind.BLOCK, (0,), LENGTH)]).grains == 1
    assert put(stripes.store, 2)
    assert stripes.store.counts.degraded_puts == 1
    stripes.keeper(1, 5).flips = True
    assert not found(stripes.store, 1)
    assert (stripes.store.counts.damaged, stripes.store.counts.refused) == (1, 1)


def test_a_damaged_share_goes_and_the_next_put_writes_it_again(stripes: Stripes) -> None:
    assert put(stripes.store, 1)
    damaged, others = stripes.keeper(1, 2), [stripes.keeper(1, index) for index in (0, 11)]
    damaged.values[key_of(1), 0][0][70] ^= 1
    for place in others:
        place.dead = True
    assert not found(stripes.store, 1)
    settle(stripes.store)
    assert not damaged.values
    others[0].dead = False
    assert put(stripes.store, 1)
    assert found(stripes.store, 1)
    assert damaged.values


def test_shares_of_two_values_are_never_joined(stripes: Stripes) -> None:
    other = Stripes()
    key = key_of(1)
    put(stripes.store, 1)
    other.store.put(key, 0, payload_of(key_of(2)))
    for index in range(3):
        stripes.keeper(1, index).values = other.keeper(1, index).values
    assert stripes.store.get(key, 0) is None
    assert stripes.store.counts.refused == 1
    other.store.close()


def test_a_full_place_leaves_a_value_without_its_share_until_it_is_put_again(stripes: Stripes) -> None:
    full = stripes.keeper(1, 4)
    full.full = True
    assert put(stripes.store, 1)
    assert found(stripes.store, 1)
    assert not full.values
    full.full = False
    assert put(stripes.store, 1)
    assert full.values
    for index in range(3):
        stripes.keeper(2, index).full = True
    assert not put(stripes.store, 2)
    assert not found(stripes.store, 2)


def test_eleven_are_read_and_the_twelfth_for_one_that_is_late() -> None:
    stripes = Stripes(hedge_s=0.0)
    assert put(stripes.store, 1)
    for index in (1, 3):  # eleven were asked, two of them wait for ever: only with the twelfth there are ten
        stripes.keeper(1, index).gate.clear()
    assert found(stripes.store, 1)
    assert stripes.keeper(1, 11).asked == 1
    assert stripes.store.counts.hedged == 1
    stripes.keeper(1, 5).gate.clear()
    stripes.store._timeout_s = 0.0
    assert not put(stripes.store, 1)  # nine at most
    for place in stripes.places:
        place.gate.set()
    stripes.store.close()


def test_nobody_is_asked_twice_where_eleven_answer(stripes: Stripes) -> None:
    assert put(stripes.store, 1)
    assert found(stripes.store, 1)
    settle(stripes.store)  # ten answers were enough; the eleventh place has been asked too
    assert [stripes.keeper(1, index).asked for index in range(SHARES)] == [1] * 11 + [0]


def test_a_miss_does_not_wait_for_a_place_that_hangs(stripes: Stripes) -> None:
    stripes.keeper(1, 7).gate.clear()  # would wait for a minute
    assert not found(stripes.store, 1)
    assert stripes.store.has([(key_of(1), 0)]) == [False]


def test_what_a_place_leaves_open_is_bounded(stripes: Stripes) -> None:
    hanging = stripes.keeper(1, 0)
    put(stripes.store, 1)
    hanging.gate.clear()
    for _ in range(100):
        assert found(stripes.store, 1)
    assert hanging.asked <= 2  # its threads; the others of its questions wait, or were not put at all


def test_names_need_ten_places_that_can_be_listed(stripes: Stripes) -> None:
    put(stripes.store, 1)
    for index in range(2):
        stripes.keeper(1, index).dead = True
    assert list(stripes.store.names()) == [(key_of(1), 0)]
    stripes.keeper(1, 2).dead = True
    with pytest.raises(StoreError, match="only 9 of 12 places can be listed"):
        stripes.store.names()


def test_twelve_places_are_needed() -> None:
    with pytest.raises(StoreError, match="needs 12 places, not 3"):
        StripedStore([Place(), Place(), Place()])


# -- the list of places -----------------------------------------------------------------------------------------------


def test_a_list_names_folders_and_buckets(tmp_path: Path) -> None:
    wanted = [f"/disk{i}/kv" for i in range(11)] + ["s3://bucket/prefix"]
    (tmp_path / "list").write_text("# where\n" + "\n\n".join(f"{place}  # a disk" for place in wanted))
    assert striped_places(f"striped:{tmp_path / 'list'}") == wanted


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: lines[:-1], "names 11 different places; 12 are needed"),
        (lambda lines: [*lines[:-1], "/disk0/../disk0/kv"], "names 11 different places; 12 are needed"),
        (lambda lines: [*lines, "/more"], "names 13 different places; 12 are needed"),
        (lambda lines: [*lines[:-1], "tcp://h:1"], "must be a folder or a bucket, not tcp://h:1"),
    ],
)
def test_lists_it_refuses(tmp_path: Path, change: Callable[[list[str]], list[str]], words: str) -> None:
    (tmp_path / "list").write_text("\n".join(change([f"/disk{i}/kv" for i in range(12)])))
    with pytest.raises(ConfigError, match=words):
        striped_places(f"striped:{tmp_path / 'list'}")
    with pytest.raises(ConfigError, match="No such file"):
        striped_places(f"striped:{tmp_path / 'none'}")


# -- a dictionary beside it -------------------------------------------------------------------------------------------


class StripesAsADictionary(RuleBasedStateMachine):
    """Whatever happens to its places: a value is whole or a miss, and it is found while ten good shares are there."""

    numbers, places = st.integers(0, 3), st.integers(0, SHARES - 1)

    def __init__(self) -> None:
        super().__init__()
        self.stripes = Stripes()

    def good(self, number: int) -> int:
        settle(self.stripes.store)
        name = (key_of(number), 0)
        return sum(not p.dead and not p.flips and name in p.values for p in self.stripes.places)

    @rule(number=numbers)
    def put(self, number: int) -> None:
        settle(self.stripes.store)
        able = sum(not p.dead and (not p.full or (key_of(number), 0) in p.values) for p in self.stripes.places)
        assert put(self.stripes.store, number) == (able >= DATA)

    @rule(number=numbers)
    def delete(self, number: int) -> None:
        settle(self.stripes.store)
        there = any(not p.dead and (key_of(number), 0) in p.values for p in self.stripes.places)
        assert self.stripes.store.delete(key_of(number), 0) == there

    @rule(which=places, fault=st.sampled_from(["dead", "full", "flips"]), on=st.booleans())
    def change(self, which: int, fault: str, on: bool) -> None:
        setattr(self.stripes.places[which], fault, on)

    @rule(number=numbers)
    def get(self, number: int) -> None:
        good = self.good(number)
        assert found(self.stripes.store, number) == (good >= DATA)

    @invariant()
    def no_more_is_listed_than_was_put(self) -> None:
        if sum(place.dead for place in self.stripes.places) <= SHARES - DATA:
            assert set(self.stripes.store.names()) <= {(key_of(number), 0) for number in range(4)}

    def teardown(self) -> None:
        self.stripes.store.close()


TestStripesAsADictionary = StripesAsADictionary.TestCase
TestStripesAsADictionary.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize(("length", "factor"), [(16_384, 6.0), (114_048, 1.72), (1 << 20, 1.27), (3 << 20, 1.22)])
def test_what_a_value_takes_on_twelve_disks(tmp_path: Path, length: int, factor: float) -> None:
    places = [LocalStore(tmp_path / str(i), 8 << 20) for i in range(SHARES)]
    store = StripedStore(places, timeout_s=ROOMY_S, put_grace_s=ROOMY_S)
    assert put(store, 1, length)
    spans = sum(entry.span for place in places for _, entry in place.index.all_entries())
    assert round(spans / length, 2) == factor
    store.close()


def test_two_places_that_cannot_be_opened_are_gone_and_the_rest_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folders = [tmp_path / f"place-{i}" for i in range(SHARES)]
    (tmp_path / "places").write_text("\n".join(map(str, folders)))
    errand = Errand(f"striped:{tmp_path / 'places'}", bytes([1] * 16), 1 << 30)
    for lost in folders[:2]:
        lost.touch()
    store = open_store_at(errand)
    assert put(store, 1)  # type: ignore[arg-type]
    assert found(store, 1)  # type: ignore[arg-type]
    store.close()
    assert sum("a place of the striped KV store is gone" in r.getMessage() for r in caplog.records) == 2
    rmtree(folders[2])
    folders[2].touch()
    with pytest.raises(StoreError, match="3 of 12 places cannot be opened"):
        open_store_at(errand)
