"""Host memory of a stated budget where a preempted sequence's blocks wait, to come back bit for bit."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.cache.chain import Chain
from kvist.cache.kv_cache import KvCache
from kvist.cache.pool import BlockPool
from kvist.cache.sequence import Past, Sequence
from kvist.cache.store import Store
from kvist.spec.cache import swap_blocks


@dataclass(frozen=True)
class Swapped:
    """A sequence that isn't in the cache, and for each group where its blocks wait.

    ``numbers`` are the numbers of its blocks, ``slots`` their places in the swap space.
    """

    sequence: Sequence
    past: Past
    first_blocks: tuple[int, ...]
    numbers: tuple[list[int], ...]
    slots: tuple[list[int], ...]


class SwapSpace:
    """A second store, of at most ``budget`` bytes, reserved at once.

    It is divided among the layer groups as the cache is; ``num_bytes`` is what whole blocks make of the budget.
    """

    def __init__(self, cache: KvCache, budget: int) -> None:
        self._cache = cache
        num_blocks = swap_blocks(cache.groups, cache.num_tokens, cache.step_tokens, budget)
        self._store = Store(cache.groups, num_blocks)
        self._pools = tuple(BlockPool(count) for count in num_blocks)

    @property
    def num_bytes(self) -> int:
        """Bytes that are reserved."""
        return self._store.num_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of the blocks that wait here."""
        return sum(
            group.block_bytes * pool.num_used for group, pool in zip(self._cache.groups, self._pools, strict=True)
        )

    def swap_out(self, sequence: Sequence) -> Swapped | None:
        """Copy a sequence's blocks to here and release it; None where they don't fit, and then nothing has changed."""
        held = [table.held for table in sequence.tables]
        if any(len(blocks) > pool.num_free for blocks, pool in zip(held, self._pools, strict=True)):
            return None
        slots = tuple(pool.take(len(blocks)) for blocks, pool in zip(held, self._pools, strict=True))
        for group, (blocks, places) in enumerate(zip(held, slots, strict=True)):
            for block, slot in zip(blocks, places, strict=True):
                self._cache.store.copy_block(group, block, slot, into=self._store)
        first_blocks = tuple(table.first_block for table in sequence.tables)
        numbers = tuple(table.numbers for table in sequence.tables)
        swapped = Swapped(sequence, sequence.past, first_blocks, numbers, slots)
        sequence.release()
        return swapped

    def blocks_wanted(self, swapped: Swapped) -> tuple[int, ...]:
        """Blocks of each group that are available no more once ``swap_in`` is done: new ones, and found ones."""
        return tuple(
            found.count(None) + sum(block is not None and not pool.num_owners(block) for block in found)
            for pool, found in zip(self._cache.pools, self._found(swapped), strict=True)
        )

    def blocks_missing(self, swapped: Swapped) -> int:
        """Blocks that ``swap_in`` lacks, in all pools together; 0: it fits."""
        pairs = zip(self.blocks_wanted(swapped), self._cache.pools, strict=True)
        return sum(max(0, wanted - pool.num_available) for wanted, pool in pairs)

    def swap_in(self, swapped: Swapped) -> bool:
        """Give the sequence its tokens again; False where the cache lacks the blocks, and then nothing has changed.

        Blocks that are still to be found in the cache are shared, the others are copied back.
        """
        if self.blocks_missing(swapped):
            return False
        tables = []
        for group, (pool, found) in enumerate(zip(self._cache.pools, self._found(swapped), strict=True)):
            for block in found:
                if block is not None:
                    pool.share(block)
            fresh = iter(pool.take(found.count(None)))
            blocks = [next(fresh) if block is None else block for block in found]
            for slot, was, block in zip(swapped.slots[group], found, blocks, strict=True):
                if was is None:
                    self._store.copy_block(group, slot, block, into=self._cache.store)
            tables.append((swapped.first_blocks[group], blocks))
        swapped.sequence.start(swapped.past, tables)
        self.discard(swapped)
        return True

    def discard(self, swapped: Swapped) -> None:
        """Forget a sequence that won't come back."""
        for pool, slots in zip(self._pools, swapped.slots, strict=True):
            pool.give_back(slots)

    def _found(self, swapped: Swapped) -> list[list[int | None]]:
        """For each group and slot the block of the cache that holds the same tokens, if one does."""
        sequence = swapped.sequence
        entries = self._cache.index.whole(Chain(sequence.scope, swapped.past.key)) if sequence.is_shared else []
        found: list[list[int | None]] = []
        for group, numbers in enumerate(swapped.numbers):
            known = [entries[number] if number < len(entries) else None for number in numbers]
            found.append([entry.blocks[group] if entry else None for entry in known])
        return found

    def check(self) -> None:
        for pool in self._pools:
            pool.check()
            assert not pool.num_cached, pool.num_cached
