"""Policies: leaf first, bounded, and a shadow that switches only for a gain."""

from __future__ import annotations

import random
from collections import OrderedDict

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kv.policy import Ghosts, Item, Lru, PolicyCache, Turns
from headrace.kv.shadow import CANDIDATES, WINDOW, AdaptiveCache, Shadow

chains = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=8, unique=True), max_size=60)


@settings(max_examples=60, deadline=None)
@given(chains, st.integers(1, 20))
def test_lru_is_lru_by_a_model(requests: list[list[int]], capacity: int) -> None:
    cache, model = AdaptiveCache(capacity, (Lru(),)), OrderedDict[int, None]()
    for chain in requests:
        expected = next((i for i, key in enumerate(chain) if key not in model), len(chain))
        for key in reversed(chain):
            model[key] = None
            model.move_to_end(key)
            if len(model) > capacity:
                model.popitem(last=False)
        assert cache.request(chain) == expected


def test_of_one_request_the_deepest_leaves_first() -> None:
    cache = AdaptiveCache(4, (Lru(),))
    cache.request(["a", "b", "c", "d"])
    cache.request(["x"])
    assert cache.request(["a", "b", "c", "d"]) == 3


def test_turns_keep_what_came_back_before() -> None:
    assert Turns(0).rank(Item(5, turn=9), 100) == Lru().rank(Item(5, turn=9), 100) == 5
    cache = PolicyCache(2, Turns(2))
    cache.touch("returned", Item(1, turn=3))
    cache.touch("new", Item(2))
    cache.touch("newer", Item(3))
    assert set(cache.items) == {"returned", "newer"}
    cache.switch(Lru())
    cache.touch("newest", Item(4))
    assert set(cache.items) == {"newer", "newest"}


def test_a_shared_first_grain_is_no_conversation() -> None:
    ghosts = Ghosts(10)
    for key in ("system", "a"):
        ghosts.touch(key, 1)
    assert ghosts.turn_of(["system", "b"]) == 1
    assert ghosts.turn_of(["system", "a", "b"]) == 2
    assert ghosts.touch("a", 2) == 2
    assert ghosts.turn_of(["system", "a", "b"]) == 3


def conversations(rounds: int, seed: int) -> list[list[str]]:
    """A few conversations that return, in a flood of requests that never do."""
    rng, out = random.Random(seed), []
    for i in range(rounds):
        out.append([f"once {i} {j}" for j in range(8)])
        if i % 4 == 0:
            who = rng.randrange(40)
            out.append([f"talk {who} {j}" for j in range(8)])
    return out


def test_the_shadow_finds_what_helps_and_lru_stays_where_nothing_does() -> None:
    trace = conversations(6000, 1)
    lru, ours = AdaptiveCache(600, (Lru(),)), AdaptiveCache(600)
    hits = [sum(cache.request(chain) for chain in trace) for cache in (lru, ours)]
    assert hits[1] > 1.5 * hits[0]
    assert ours.switches
    quiet = AdaptiveCache(600)
    for i in range(3000):
        quiet.request([f"{i} {j}" for j in range(4)])
    assert quiet.policy.name == "lru"
    assert not quiet.switches


def test_the_shadow_asks_for_a_gain() -> None:
    shadow = Shadow(64)
    for clock in range(1, 3 * WINDOW):  # everything fits: every policy hits alike
        assert not shadow.touch(f"{clock % 50}", Item(clock))
    assert shadow.best is CANDIDATES[0]
