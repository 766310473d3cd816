"""BlockPool against a list of owners, by random taking, sharing and giving back."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from kvist.cache.pool import BlockPool
from kvist.errors import CapacityError

NUM_BLOCKS = 12


class PoolMachine(RuleBasedStateMachine):
    """``held`` are handles: each stands for one owner of a block."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.owners = [0] * NUM_BLOCKS

    @rule(target=held, count=st.integers(0, NUM_BLOCKS))
    def take(self, count: int) -> object:
        free = [block for block, owners in enumerate(self.owners) if not owners]
        if count > len(free):
            with pytest.raises(CapacityError, match=f"{len(free)} free blocks of 16 tokens and {count} are needed"):
                self.pool.take(count)
            return multiple()
        taken = self.pool.take(count)
        assert len(set(taken)) == count
        assert set(taken) <= set(free)
        for block in taken:
            self.owners[block] = 1
        return multiple(*taken)

    @rule(target=held, block=held)
    def share(self, block: int) -> object:
        if not self.owners[block]:
            return multiple()
        self.pool.share(block)
        self.owners[block] += 1
        return block

    @rule(block=consumes(held))
    def give_back(self, block: int) -> None:
        if self.owners[block]:
            self.pool.give_back([block])
            self.owners[block] -= 1

    @invariant()
    def check(self) -> None:
        self.pool.check()
        assert self.pool.num_used == sum(owners > 0 for owners in self.owners)
        assert self.pool.num_free == NUM_BLOCKS - self.pool.num_used


TestPool = PoolMachine.TestCase


def test_the_first_blocks_come_in_order_and_later_ones_as_they_came_back() -> None:
    pool = BlockPool(4)
    assert pool.take(4) == [0, 1, 2, 3]
    pool.give_back([1])
    pool.give_back([3, 0])
    assert pool.take(3) == [0, 3, 1]


def test_a_free_block_has_no_owner_to_add_or_remove() -> None:
    pool = BlockPool(2)
    for wrong in (lambda: pool.share(0), lambda: pool.give_back([1])):
        with pytest.raises(AssertionError):
            wrong()


def test_check_finds_what_is_wrong() -> None:
    for spoil in (
        lambda pool: pool._free.append(0),
        lambda pool: pool._free.pop(),
        lambda pool: pool._num_owners.__setitem__(3, 1),
        lambda pool: pool._free.__setitem__(0, 2),
    ):
        pool = BlockPool(4)
        pool.take(1)
        pool.check()
        spoil(pool)
        with pytest.raises(AssertionError):
            pool.check()
