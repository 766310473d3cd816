"""One request's tokens in the cache: a block table per layer group, grown, truncated and given back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvist.spec.cache import BLOCK_TOKENS, num_blocks

if TYPE_CHECKING:
    from kvist.cache.kv_cache import KvCache


class Table:
    """A sequence's blocks in one group, by block number; those below ``first_block`` are given back."""

    def __init__(self) -> None:
        self._ids = np.empty(64, np.int64)
        self.num_blocks = 0
        self.first_block = 0

    @property
    def blocks(self) -> npt.NDArray[np.int64]:
        """Block ids by block number, as a view; ids below ``first_block`` are stale."""
        return self._ids[: self.num_blocks]

    @property
    def held(self) -> list[int]:
        """Ids of the blocks that aren't given back."""
        return self._listed(self.first_block, self.num_blocks)

    def _listed(self, first: int, end: int) -> list[int]:
        ids: list[int] = self._ids[first:end].tolist()
        return ids

    def extend(self, blocks: list[int]) -> None:
        """Add blocks at the end."""
        end = self.num_blocks + len(blocks)
        if end > self._ids.size:
            self._ids = np.resize(self._ids, 2 * end)
        self._ids[self.num_blocks : end] = blocks
        self.num_blocks = end

    def cut(self, num_blocks: int) -> list[int]:
        """Forget the blocks from number ``num_blocks`` on; returns those that were held."""
        cut = self._listed(max(num_blocks, self.first_block), self.num_blocks)
        self.num_blocks = min(self.num_blocks, num_blocks)
        self.first_block = min(self.first_block, self.num_blocks)
        return cut

    def drop(self, first_block: int) -> list[int]:
        """Forget the held blocks below number ``first_block``; returns them."""
        end = max(self.first_block, min(first_block, self.num_blocks))
        dropped, self.first_block = self._listed(self.first_block, end), end
        return dropped


class Sequence:
    """Tokens 0 to ``num_tokens`` - 1, of which each group holds what later queries can still see."""

    def __init__(self, cache: KvCache) -> None:
        self.cache = cache
        self.num_tokens = 0
        self.tables = tuple(Table() for _ in cache.groups)

    @property
    def logical_bytes(self) -> int:
        """Bytes of the keys and values that are still needed."""
        return sum(group.token_bytes * group.num_logical_tokens(self.num_tokens) for group in self.cache.groups)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the blocks that are held."""
        return sum(
            group.block_bytes * len(table.held) for group, table in zip(self.cache.groups, self.tables, strict=True)
        )

    def grow(self, num_new: int) -> None:
        """Take the blocks for ``num_new`` more tokens.

        Raises:
            CapacityError: too few blocks are free; then nothing has changed.
        """
        target = num_blocks(self.num_tokens + num_new)
        taken: list[list[int]] = []
        try:
            for table, pool in zip(self.tables, self.cache.pools, strict=True):
                taken.append(pool.take(max(0, target - table.num_blocks)))
        except Exception:
            for blocks, pool in zip(taken, self.cache.pools, strict=False):
                pool.give_back(blocks)
            raise
        for table, blocks in zip(self.tables, taken, strict=True):
            table.extend(blocks)
        self.num_tokens += num_new

    def drop_unseen(self) -> None:
        """Give back the blocks that have left every window of the queries still to come."""
        for group, table, pool in zip(self.cache.groups, self.tables, self.cache.pools, strict=True):
            pool.give_back(table.drop(group.first_kept(self.num_tokens) // BLOCK_TOKENS))

    def truncate(self, num_tokens: int) -> int:
        """Forget the tokens from ``num_tokens`` on; returns how many are left.

        Where a window's blocks that the next query would need are gone already, none is left, and what was asked for
        has to be computed again.
        """
        assert 0 <= num_tokens <= self.num_tokens, (num_tokens, self.num_tokens)
        is_gone = any(
            group.first_kept(num_tokens) // BLOCK_TOKENS < table.first_block
            for group, table in zip(self.cache.groups, self.tables, strict=True)
        )
        kept = 0 if is_gone else num_tokens
        for table, pool in zip(self.tables, self.cache.pools, strict=True):
            pool.give_back(table.cut(num_blocks(kept)))
        self.num_tokens = kept
        return kept

    def release(self) -> None:
        """Give everything back."""
        for table, pool in zip(self.tables, self.cache.pools, strict=True):
            pool.give_back(table.cut(0))
        self.num_tokens = 0

    def check(self) -> None:
        """Assert that each table holds exactly the blocks that its tokens need."""
        for group, table in zip(self.cache.groups, self.tables, strict=True):
            assert table.num_blocks == num_blocks(self.num_tokens), (table.num_blocks, self.num_tokens)
            assert len(table.held) == group.num_blocks(self.num_tokens), (len(table.held), self.num_tokens)
