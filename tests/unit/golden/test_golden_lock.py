"""The refresh lock: one holder, across processes and nodes; expiry, takeover, and nobody removes a successor's lock."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from headrace.contract.errors import ConfigError
from headrace.lab.golden.lock import SKEW_S, Holder, Lock


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model" / "b.json.lock"


def test_a_second_refresh_is_told_who_holds_it(path: Path) -> None:
    with (
        Lock(path).held(),
        pytest.raises(ConfigError, match=r"lock: .*process \d+ on .* is refreshing this, until 20"),
        Lock(path).held(),
    ):
        pass
    assert list(path.parent.iterdir()) == [], "nothing is left behind"


def test_it_is_free_after_use_and_after_an_exception(path: Path) -> None:
    with pytest.raises(KeyError), Lock(path).held():
        raise KeyError
    with Lock(path).held() as lock:
        lock.require()


def test_of_many_at_once_one_wins(path: Path) -> None:
    barrier, done, won, lost = threading.Barrier(12), threading.Event(), [], []

    def race() -> None:
        barrier.wait(60)
        try:
            with Lock(path).held():
                won.append(1)
                done.wait(60)
        except ConfigError:
            lost.append(1)
            if len(lost) == 11:
                done.set()

    threads = [threading.Thread(target=race) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert (len(won), len(lost)) == (1, 11)


def abandoned(path: Path, clock: Clock) -> Holder:
    """The lock of a node that died: taken and never released."""
    path.parent.mkdir(parents=True)
    holder = Holder("other-node", 7, "0123", clock.now, clock.now + 100)
    path.write_bytes(msgspec.json.encode(holder))
    return holder


def test_a_dead_holder_stops_nobody_for_longer_than_its_time_and_the_skew(path: Path) -> None:
    clock = Clock()
    holder = abandoned(path, clock)
    clock.now = holder.expires + SKEW_S
    with pytest.raises(ConfigError, match="process 7 on other-node"), Lock(path, wall=clock).held():
        pass
    clock.now += 1
    with Lock(path, wall=clock).held() as lock:
        lock.require()
    assert not path.exists()


def test_of_many_that_take_over_one_wins(path: Path) -> None:
    clock = Clock()
    clock.now = abandoned(path, clock).expires + SKEW_S + 1
    results: list[bool] = []
    barrier, done = threading.Barrier(8), threading.Event()

    def race() -> None:
        barrier.wait(60)
        try:
            with Lock(path, lifetime_s=1e6, wall=clock).held() as lock:
                lock.require()
                results.append(True)
                done.wait(60)
        except ConfigError:
            results.append(False)
        if len(results) == 8:
            done.set()

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sum(results) == 1


def test_who_lost_its_lock_publishes_nothing_and_leaves_the_new_one_alone(path: Path) -> None:
    clock = Clock()
    slow, fast = Lock(path, 100, clock), Lock(path, 10_000, clock)
    with slow.held():
        clock.now += 100 + SKEW_S + 1
        with fast.held():
            with pytest.raises(ConfigError, match="nothing was written"):
                slow.require()
            assert msgspec.json.decode(path.read_bytes(), type=Holder).expires > 10_000
            slow._remove(slow._me)
            fast.require()
    with Lock(path, wall=clock).held():
        pass


def test_time_that_ran_out_is_noticed_even_when_nobody_took_over(path: Path) -> None:
    clock = Clock()
    with Lock(path, 100, clock).held() as lock:
        clock.now += 100
        with pytest.raises(ConfigError, match="nothing was written"):
            lock.require()


def test_a_claim_on_another_lock_does_not_remove_this_one(path: Path) -> None:
    """Whoever wants to remove a lock claims that very lock; one that is gone meanwhile is not mistaken for the next."""
    clock = Clock()
    old = abandoned(path, clock)
    late = Lock(path, wall=clock)
    path.unlink()
    with Lock(path, wall=clock).held() as current:
        assert not late._remove(old)
        current.require()


def test_something_else_under_its_name_is_left_alone(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text("a letter")
    with pytest.raises(ConfigError, match="no lock of ours"), Lock(path).held():
        pass
    assert path.read_text() == "a letter"
