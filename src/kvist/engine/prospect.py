"""What a waiting request would find in the cache, were it let in now; looked up, not taken."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.cache.chain import Chain
from kvist.cache.kv_cache import KvCache
from kvist.engine.answer import Answer
from kvist.engine.room import Blocks
from kvist.spec.cache import BLOCK_TOKENS, num_blocks


@dataclass(frozen=True)
class Prospect:
    """``num_tokens`` would be found, in blocks of which ``idle`` by group are nobody's now (and would be available no
    more). ``copied`` groups would copy the last of them. ``names`` are the blocks that it would compute."""

    num_tokens: int
    idle: Blocks
    copied: Blocks
    names: tuple[bytes, ...]
    is_computed_elsewhere: bool = False

    def blocks_wanted(self, num_new: int) -> Blocks:
        """Blocks of each group that are available no more once ``num_new`` tokens after those found are there."""
        new = num_blocks(self.num_tokens + num_new) - num_blocks(self.num_tokens)
        return tuple(new + idle + copied for idle, copied in zip(self.idle, self.copied, strict=True))


class Prospects:
    """Looks prompts up; each is hashed once for as long as it waits."""

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache
        self._chains: dict[Answer, tuple[int, Chain]] = {}

    def of(self, answer: Answer) -> Prospect:
        """What ``answer`` would find now."""
        groups = len(self._cache.pools)
        nothing = (0,) * groups
        if not answer.is_shared:
            return Prospect(0, nothing, nothing, ())
        chain = self._chain(answer)
        hit = self._cache.index.find(chain)
        idle, copied = [], []
        for group, pool in enumerate(self._cache.pools):
            first = chain.scope.groups[group].first_kept(hit.num_tokens) // BLOCK_TOKENS
            owners = [pool.num_owners(entry.block(group)) for entry in hit.entries[first:] if entry]
            idle.append(sum(not count for count in owners))
            copied.append(int(hit.num_tokens % BLOCK_TOKENS > 0 and bool(owners) and owners[-1] > 0))
        is_computed = self._cache.is_being_computed(chain, hit.num_tokens)
        names = chain.hashes[hit.num_tokens // BLOCK_TOKENS :]
        return Prospect(hit.num_tokens, tuple(idle), tuple(copied), names, is_computed)

    def num_hit(self, answer: Answer) -> int:
        """How many tokens ``answer`` would find now."""
        return self._cache.num_cached(self._chain(answer)) if answer.is_shared else 0

    def forget(self, answer: Answer) -> None:
        """It waits no more."""
        self._chains.pop(answer, None)

    def _chain(self, answer: Answer) -> Chain:
        length, chain = self._chains.get(answer, (0, None))
        if chain is None or length != len(answer.ids):
            chain = self._cache.chain(answer.ids, salt=answer.request.salt)
            self._chains[answer] = len(answer.ids), chain
        return chain
