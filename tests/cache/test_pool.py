"""BlockPool against lists of owners and of what is cached, by random taking, sharing, publishing and giving back."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from kvist.cache.pool import BlockPool
from kvist.errors import CapacityError

NUM_BLOCKS = 12


class PoolMachine(RuleBasedStateMachine):
    """``held`` are handles: each stands for one owner of a block. ``cached`` is the order in which blocks go."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[int] = []
        self.pool = BlockPool(NUM_BLOCKS, self.evicted.append)
        self.owners = [0] * NUM_BLOCKS
        self.published: set[int] = set()
        self.cached: list[int] = []

    @rule(target=held, count=st.integers(0, NUM_BLOCKS))
    def take(self, count: int) -> object:
        free = [block for block, owners in enumerate(self.owners) if not owners and block not in self.cached]
        before = len(self.evicted)
        there = len(free) + len(self.cached)
        if count > there:
            with pytest.raises(CapacityError, match=f"{there} free blocks of 16 tokens and {count} are needed"):
                self.pool.take(count)
            assert len(self.evicted) == before
            return multiple()
        taken = self.pool.take(count)
        assert len(set(taken)) == count
        num_evicted = max(0, count - len(free))
        assert self.evicted[before:] == self.cached[:num_evicted]
        assert set(taken) <= {*free, *self.cached[:num_evicted]}
        self.published -= set(self.cached[:num_evicted])
        del self.cached[:num_evicted]
        for block in taken:
            self.owners[block] = 1
        return multiple(*taken)

    @rule(target=held, block=held)
    def share(self, block: int) -> object:
        if not self.owners[block] and block not in self.cached:
            return multiple()
        self.pool.share(block)
        self.owners[block] += 1
        self.cached = [other for other in self.cached if other != block]
        return block

    @rule(block=held)
    def publish_or_withdraw(self, block: int) -> None:
        if block in self.published:
            self.pool.withdraw(block)
            self.published.remove(block)
            self.cached = [other for other in self.cached if other != block]
        elif self.owners[block]:
            self.pool.publish(block)
            self.published.add(block)

    @rule(block=consumes(held))
    def give_back(self, block: int) -> None:
        if self.owners[block]:
            self.pool.give_back([block])
            self.owners[block] -= 1
            if not self.owners[block] and block in self.published:
                self.cached.append(block)

    @invariant()
    def check(self) -> None:
        self.pool.check()
        assert self.pool.num_used == sum(owners > 0 for owners in self.owners)
        assert self.pool.num_cached == len(self.cached)
        assert self.pool.num_free == NUM_BLOCKS - self.pool.num_used - len(self.cached)
        assert self.pool.num_available == NUM_BLOCKS - self.pool.num_used
        assert self.pool.num_evicted == len(self.evicted)
        for block, owners in enumerate(self.owners):
            assert self.pool.num_owners(block) == owners
            assert self.pool.is_published(block) == (block in self.published)
            assert self.pool.is_private(block) == (owners == 1 and block not in self.published)


TestPool = PoolMachine.TestCase


def test_the_first_blocks_come_in_order_and_later_ones_as_they_came_back() -> None:
    pool = BlockPool(4)
    assert pool.take(4) == [0, 1, 2, 3]
    pool.give_back([1])
    pool.give_back([3, 0])
    assert pool.take(3) == [0, 3, 1]


def test_free_blocks_go_before_cached_ones_and_these_as_they_came_back() -> None:
    evicted: list[int] = []
    pool = BlockPool(6, evicted.append)
    for block in pool.take(4):
        pool.publish(block)
    pool.give_back([3, 2, 1, 0])
    assert (pool.num_free, pool.num_cached, pool.num_used) == (2, 4, 0)
    assert pool.take(2) == [4, 5]
    assert evicted == []
    pool.share(3)
    pool.give_back([3])
    assert pool.take(2) == [1, 2], "in the order of memory"
    assert evicted == [2, 1]
    pool.withdraw(3)
    assert (pool.num_free, pool.num_cached, pool.num_used) == (1, 1, 4)
    pool.take(2)
    assert evicted == [2, 1, 0]
    assert (pool.num_taken, pool.num_evicted) == (10, 3)


def test_a_free_block_has_no_owner_to_add_or_remove() -> None:
    pool = BlockPool(2)
    for wrong in (
        lambda: pool.share(0),
        lambda: pool.give_back([1]),
        lambda: pool.publish(0),
        lambda: pool.withdraw(0),
    ):
        with pytest.raises(AssertionError):
            wrong()


def test_check_finds_what_is_wrong() -> None:
    for spoil in (
        lambda pool: pool._free.append(0),
        lambda pool: pool._free.pop(),
        lambda pool: pool._num_owners.__setitem__(3, 1),
        lambda pool: pool._free.__setitem__(0, 2),
        lambda pool: pool._is_published.__setitem__(3, True),
        lambda pool: pool._is_published.__setitem__(1, False),
        lambda pool: pool._cached.__setitem__(0, None),
        lambda pool: pool._cached.pop(1),
    ):
        pool = BlockPool(4)
        pool.take(2)
        pool.publish(1)
        pool.give_back([1])
        pool.check()
        spoil(pool)
        with pytest.raises(AssertionError):
            pool.check()
