"""What a cache holds at a moment: blocks by state, and bytes with shared blocks counted once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvist.cache.pool import BlockPool
from kvist.cache.prefix import PrefixIndex
from kvist.cache.sequence import Sequence
from kvist.spec.cache import BLOCK_TOKENS, LayerGroup


@dataclass(frozen=True)
class CacheUsage:
    """Blocks of all pools together, and bytes.

    ``logical_bytes``: what the tokens take that each sequence needs, shared ones once for each. ``allocated_bytes``:
    blocks in use, once however many share them; ``filled_bytes``: what of these is written. ``cached_bytes``: blocks
    that nobody holds, kept to be found. ``pool_bytes``: what is reserved.
    """

    num_free_blocks: int
    num_cached_blocks: int
    num_used_blocks: int
    num_evicted_blocks: int
    logical_bytes: int
    allocated_bytes: int
    filled_bytes: int
    cached_bytes: int
    pool_bytes: int

    @property
    def waste(self) -> float:
        """The share of the allocated bytes that isn't filled: sequences' last blocks."""
        return 1 - self.filled_bytes / self.allocated_bytes if self.allocated_bytes else 0.0


def measure(
    groups: tuple[LayerGroup, ...],
    pools: tuple[BlockPool, ...],
    index: PrefixIndex,
    sequences: Iterable[Sequence],
    pool_bytes: int,
) -> CacheUsage:
    """Count what the pools hold for these sequences, which are all that hold blocks."""
    live = [sequence for sequence in sequences if sequence.num_tokens]
    allocated = sum(group.block_bytes * pool.num_used for group, pool in zip(groups, pools, strict=True))
    unfilled = sum(group.token_bytes * _num_unfilled(number, index, live) for number, group in enumerate(groups))
    return CacheUsage(
        num_free_blocks=sum(pool.num_free for pool in pools),
        num_cached_blocks=sum(pool.num_cached for pool in pools),
        num_used_blocks=sum(pool.num_used for pool in pools),
        num_evicted_blocks=sum(pool.num_evicted for pool in pools),
        logical_bytes=sum(sequence.logical_bytes for sequence in live),
        allocated_bytes=allocated,
        filled_bytes=allocated - unfilled,
        cached_bytes=sum(group.block_bytes * pool.num_cached for group, pool in zip(groups, pools, strict=True)),
        pool_bytes=pool_bytes,
    )


def _num_unfilled(group: int, index: PrefixIndex, live: list[Sequence]) -> int:
    """Slots of used blocks of a group that no token was written to: only sequences' last blocks have any."""
    filled: dict[int, int] = {}
    for sequence in live:
        number, num_inside = divmod(sequence.num_slots, BLOCK_TOKENS)
        if num_inside:
            block = sequence.tables[group][number]
            filled[block] = max(num_inside, filled.get(block, 0), index.num_tokens_in(group, block))
    return sum(BLOCK_TOKENS - count for count in filled.values())
