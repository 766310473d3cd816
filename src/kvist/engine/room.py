"""The blocks that there would be: a ledger beside the pools, in which a plan takes and gives without touching them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Many

from kvist.cache.kv_cache import KvCache
from kvist.cache.sequence import Sequence
from kvist.spec.cache import num_blocks

Blocks = tuple[int, ...]
"""A number of blocks for each layer group."""


class Room:
    """``available`` blocks by group: free ones, and cached ones that can be evicted."""

    def __init__(self, cache: KvCache) -> None:
        self._pools = cache.pools
        self.available = [pool.num_available for pool in cache.pools]
        self._given_up: list[Counter[int]] = [Counter() for _ in cache.pools]  # by how many owners
        self._taken: dict[Sequence, Blocks] = {}
        self._copied: dict[Sequence, list[tuple[int, int]]] = {}

    def has(self, wanted: Many[int], reserve: int = 0) -> bool:
        """Whether ``wanted`` blocks, and ``reserve`` more in each group, are there."""
        return all(count + reserve <= there for count, there in zip(wanted, self.available, strict=True))

    def take_blocks(self, wanted: Many[int]) -> None:
        for group, count in enumerate(wanted):
            self.available[group] -= count

    def has_a_row_for(self, num_sequences: int) -> bool:
        """Whether that many can grow by a token, whichever they are: each by a new block, or a copy of its last."""
        return all(there >= num_sequences for there in self.available)

    def take_a_row_for(self, num_sequences: int) -> None:
        """Take the most that this can come to."""
        self.available = [there - num_sequences for there in self.available]

    def fits(self, sequence: Sequence, num_new: int) -> bool:
        """Whether ``sequence`` can grow by ``num_new`` tokens, those included that it was given already."""
        return self.has(self._more(sequence, num_new))

    def grow(self, sequence: Sequence, num_new: int) -> None:
        """Take the blocks for that."""
        more = self._more(sequence, num_new)
        copies = self._copies(sequence, num_new)
        for group, block in copies:
            self._given_up[group][block] += 1  # the copy is its own; the others keep what was shared
        self._copied.setdefault(sequence, []).extend(copies)
        self.take_blocks(more)
        taken = self._taken.get(sequence, (0,) * len(self._pools))
        self._taken[sequence] = tuple(had + new for had, new in zip(taken, more, strict=True))

    def release(self, sequence: Sequence) -> None:
        """As if ``sequence`` were released: what it was given comes back, and every block that nobody else holds."""
        for group, count in enumerate(self._taken.pop(sequence, ())):
            self.available[group] += count
        for group, block in self._copied.pop(sequence, ()):
            self._given_up[group][block] -= 1
        for group, (table, pool) in enumerate(zip(sequence.tables, self._pools, strict=True)):
            given_up = self._given_up[group]
            for block in table.held:
                given_up[block] += 1
                if given_up[block] == pool.num_owners(block):
                    self.available[group] += 1

    def _more(self, sequence: Sequence, num_new: int) -> Blocks:
        """Blocks for ``num_new`` tokens beyond those that it was given."""
        end = num_blocks(sequence.num_slots + num_new)
        copies = [*self._copied.get(sequence, ()), *self._copies(sequence, num_new)]
        copied = Counter(group for group, _ in copies)
        given = self._taken.get(sequence, (0,) * len(self._pools))
        return tuple(
            end - table.num_blocks + copied[group] - taken
            for group, (table, taken) in enumerate(zip(sequence.tables, given, strict=True))
        )

    def _copies(self, sequence: Sequence, num_new: int) -> list[tuple[int, int]]:
        """(group, block) that others still hold and that will be written: copied first, these not counted already."""
        known = self._copied.get(sequence, ())
        written = [
            (group, table[number])
            for number in sequence.written(num_new)
            for group, table in enumerate(sequence.tables)
        ]
        return [
            (group, block)
            for group, block in written
            if (group, block) not in known and self._pools[group].num_owners(block) - self._given_up[group][block] > 1
        ]
