"""What a waiting request would find in the cache or the swap space, were it let in now; looked up, not taken."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.cache.chain import Chain
from kvist.cache.kv_cache import KvCache
from kvist.cache.swap import SwapSpace
from kvist.engine.answer import Answer
from kvist.engine.room import Blocks
from kvist.spec.cache import BLOCK_TOKENS, num_blocks


@dataclass(frozen=True)
class Prospect:
    """``num_tokens`` would be found, in blocks of which ``idle`` by group are nobody's now (and would be available no
    more). ``copied`` groups would copy the last of them. ``names`` are the blocks that it would compute. ``most`` it
    holds at once by group, however long it is."""

    num_tokens: int
    idle: Blocks
    copied: Blocks
    most: Blocks
    names: tuple[bytes, ...]
    is_computed_elsewhere: bool = False

    def blocks_wanted(self, num_new: int) -> Blocks:
        """Blocks of each group that are available no more once ``num_new`` tokens after those found are there."""
        new = num_blocks(self.num_tokens + num_new) - num_blocks(self.num_tokens)
        return tuple(
            min(new, most) + idle + copied for idle, copied, most in zip(self.idle, self.copied, self.most, strict=True)
        )


class Prospects:
    """Looks prompts up; each is hashed once for as long as it waits."""

    def __init__(self, cache: KvCache, swap: SwapSpace | None) -> None:
        self._cache = cache
        self._swap = swap
        self._chains: dict[Answer, tuple[tuple[int, int], Chain]] = {}

    def of(self, answer: Answer) -> Prospect:
        """What ``answer`` would find now."""
        groups = len(self._cache.pools)
        nothing = (0,) * groups
        kept = [group.with_retention(answer.retention) for group in self._cache.groups]
        most = tuple(group.peak_blocks(len(answer.context), self._cache.step_tokens) for group in kept)
        if answer.swapped is not None and self._swap is not None:
            num_tokens = answer.swapped.past.num_tokens
            return Prospect(num_tokens, self._swap.blocks_wanted(answer.swapped), nothing, most, ())
        if not answer.is_shared:
            return Prospect(0, nothing, nothing, most, ())
        chain = self._chain(answer)
        hit = self._cache.index.find(chain)
        idle, copied = [], []
        for group, pool in enumerate(self._cache.pools):
            gap, first = chain.scope.groups[group].dropped_blocks(hit.num_tokens)
            needed = (*hit.entries[:gap], *hit.entries[first:])
            owners = [pool.num_owners(entry.block(group)) for entry in needed if entry]
            idle.append(sum(not count for count in owners))
            copied.append(int(hit.num_tokens % BLOCK_TOKENS > 0 and bool(owners) and owners[-1] > 0))
        is_computed = self._cache.is_being_computed(chain, hit.num_tokens)
        names = chain.hashes[hit.num_tokens // BLOCK_TOKENS :]
        return Prospect(hit.num_tokens, tuple(idle), tuple(copied), most, names, is_computed)

    def num_hit(self, answer: Answer) -> int:
        """How many tokens ``answer`` would find now."""
        return self._cache.num_cached(self._chain(answer)) if answer.is_shared else 0

    def forget(self, answer: Answer) -> None:
        """It waits no more."""
        self._chains.pop(answer, None)

    def _chain(self, answer: Answer) -> Chain:
        known, chain = self._chains.get(answer, ((0, 0), None))
        text = answer.num_lost, len(answer.ids)
        if chain is None or known != text:
            chain = self._cache.chain(answer.context, salt=answer.request.salt, retention=answer.retention)
            self._chains[answer] = text, chain
        return chain
