"""The block pool against its plain-Python model, operation by operation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pool_model import NULL, PoolModel

from headrace._core import BlockPool, make_node

CONTENTS = [make_node(None, np.full(4, token, np.int32)) for token in range(5)]
GROUPS = 2


class PoolMachine(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(2, 9), caching=st.booleans())
    def start(self, num_blocks: int, caching: bool) -> None:
        self.real = BlockPool(num_blocks, caching)
        self.model = PoolModel(num_blocks, caching)

    def blocks(self, data: st.DataObject, most: int = 4) -> list[int]:
        return data.draw(st.lists(st.sampled_from([NULL, *self.model.ids]), max_size=most))

    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, len(self.model.queue)))
        assert self.real.allocate(count) == self.model.allocate(count)

    @rule(extra=st.integers(1, 3))
    def allocate_too_many(self, extra: int) -> None:
        with pytest.raises(RuntimeError):
            self.real.allocate(len(self.model.queue) + extra)

    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        blocks = self.blocks(data)
        self.real.touch(blocks)
        self.model.touch(blocks)

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        blocks = self.blocks(data)
        if self.model.may_free(blocks):
            self.real.free(blocks)
            self.model.free(blocks)
        else:
            with pytest.raises(RuntimeError):
                self.real.free(blocks)

    @precondition(lambda self: self.model.queue != list(self.model.ids))
    @rule(data=st.data(), content=st.integers(0, 4), group=st.integers(0, GROUPS - 1))
    def name(self, data: st.DataObject, content: int, group: int) -> None:
        used = [block for block in self.model.ids if self.model.refs[block]]
        if not used:
            return
        block = data.draw(st.sampled_from(used))
        self.real.name(block, CONTENTS[content], group)
        self.model.name(block, (content, group))

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.model.ids))
        self.real.forget(block)
        self.model.forget(block)

    @rule(data=st.data())
    def evict_first(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.model.ids))
        self.real.evict_first(block)
        self.model.evict_first(block)

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "real"):
            return
        assert self.real.free_queue() == self.model.queue
        assert self.real.num_free == len(self.model.queue)
        assert self.real.num_free + self.real.num_used == self.real.num_blocks
        assert [self.real.ref_count(b) for b in self.model.ids] == [self.model.refs[b] for b in self.model.ids]
        for content, node in enumerate(CONTENTS):
            for group in range(GROUPS):
                assert self.real.find(node, group) == self.model.find((content, group))


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_blocks_that_do_not_exist_are_refused() -> None:
    pool = BlockPool(4)
    held = pool.allocate(1)
    for block in (-1, 4, 2**31 - 1):
        with pytest.raises(IndexError):
            pool.touch([*held, block])
        with pytest.raises(RuntimeError):
            pool.free([*held, block])
        with pytest.raises(IndexError):
            pool.forget(block)
        with pytest.raises(IndexError):
            pool.ref_count(block)
    with pytest.raises(RuntimeError):
        pool.name(NULL, CONTENTS[0])
    assert pool.ref_count(held[0]) == 1


def test_token_arrays_of_another_type_are_refused() -> None:
    with pytest.raises(TypeError):
        make_node(None, np.array([2**32 + 5]))  # it would wrap to 5
