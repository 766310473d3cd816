"""The cache as a whole: a pool and a place in the store for each layer group, and the sequences that share them."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as TokenIds
from weakref import WeakSet

from kvist.cache.chain import Chain, Scope, root_hash, shareable, token_key
from kvist.cache.pool import BlockPool
from kvist.cache.prefix import PrefixIndex
from kvist.cache.sequence import Sequence
from kvist.cache.store import Store
from kvist.cache.usage import CacheUsage, measure
from kvist.errors import CapacityError
from kvist.spec.cache import (
    BLOCK_TOKENS,
    CacheSpec,
    check_codecs,
    check_retention,
    layer_groups,
    pool_blocks,
    pool_bytes,
)
from kvist.spec.footprint import STEP_TOKENS
from kvist.spec.model import ModelSpec
from kvist.spec.retention import RetentionSpec
from kvist.units import format_bytes


class KvCache:
    """Room for ``num_sequences`` sequences of ``num_tokens`` each, grown in steps of at most ``step_tokens``.

    With a ``budget`` in bytes, for as many more as fit it. Reserved and touched at once; without a budget,
    ``pool_bytes`` is ``spec.cache.pool_bytes`` of the same numbers times the sequences.

    ``identity`` names what computes the keys and values: blocks are found only under the same. ``clock`` gives seconds.
    Not to be used by two threads at once.

    Raises:
        CapacityError: the memory isn't there.
        SpecError: tokens are to be chosen by the attention they get, and a layer has a window of its own; or latents
            are to be kept in int8 or int4.
    """

    def __init__(
        self,
        model: ModelSpec,
        spec: CacheSpec,
        *,
        num_tokens: int,
        num_sequences: int = 1,
        step_tokens: int = STEP_TOKENS,
        budget: int | None = None,
        identity: bytes = b"",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if num_tokens < 1:
            smallest = pool_bytes(model, spec, 1, step_tokens)
            raise CapacityError(f"a cache needs room for at least one block, {format_bytes(smallest)}; raise kv_budget")
        self.spec = spec
        self.num_tokens = num_tokens
        self.step_tokens = step_tokens
        self.groups = layer_groups(model, spec)
        check_retention(self.groups, spec.retention)
        check_codecs(self.groups)
        num_blocks = pool_blocks(self.groups, num_tokens, step_tokens, num_sequences=num_sequences, budget=budget)
        self.store = Store(self.groups, num_blocks)
        self.pools = tuple(BlockPool(count) for count in num_blocks)
        self.index = PrefixIndex(self.pools, clock)
        self.sequences: WeakSet[Sequence] = WeakSet()
        self._identity = identity

    @property
    def pool_bytes(self) -> int:
        """Bytes that are reserved, whoever uses them."""
        return self.store.num_bytes

    @property
    def num_available(self) -> tuple[int, ...]:
        """Blocks of each group's pool that can be handed out: free ones, and cached ones that would be evicted."""
        return tuple(pool.num_available for pool in self.pools)

    def scope(self, *, salt: str = "", retention: RetentionSpec | None = None) -> Scope:
        """Return who may share: the same model, codecs, retention (None: the cache's own) and salt."""
        kept = self.spec.retention if retention is None else retention
        codecs = [f"{group.layers} {group.spec.k_codec} {group.spec.v_codec}".encode() for group in self.groups]
        root = root_hash([self._identity, *codecs, kept.identity, salt.encode()])
        return Scope(root, tuple(group.with_retention(kept) for group in self.groups))

    def new_sequence(
        self,
        *,
        salt: str = "",
        is_shared: bool = True,
        retention: RetentionSpec | None = None,
        prompt_tokens: int = 0,
    ) -> Sequence:
        """Return an empty sequence that keeps what ``retention`` says (None: the cache's own).

        It finds and publishes blocks of its ``salt`` alone, and none at all unless ``is_shared``. ``prompt_tokens`` is
        the length of its request's prompt, by which ``snapkv`` chooses.

        Raises:
            SpecError: a layer has a window of its own, and tokens are to be chosen by the attention they get.
        """
        kept = self.spec.retention if retention is None else retention
        check_retention(self.groups, kept)
        scope = self.scope(salt=salt, retention=kept)
        return Sequence(
            self,
            scope,
            is_shared=is_shared and not kept.is_scored,
            retention=kept,
            prompt_tokens=prompt_tokens,
        )

    def chain(self, token_ids: TokenIds[int], *, salt: str = "", retention: RetentionSpec | None = None) -> Chain:
        """Return a prompt to look up with ``num_cached`` and ``is_being_computed``: hashed once, however often."""
        kept = self.spec.retention if retention is None else retention
        return Chain(self.scope(salt=salt, retention=kept), token_key(shareable(token_ids, kept)))

    def num_cached(self, chain: Chain) -> int:
        """Return how many tokens ``Sequence.reuse`` would find now. Changes nothing."""
        return self.index.find(chain).num_tokens

    def is_being_computed(self, chain: Chain, num_cached: int) -> bool:
        """Whether a running sequence has planned the block that follows the first ``num_cached`` tokens.

        Who waits for it never waits for one that waits: only running sequences hold marks.
        """
        number = num_cached // BLOCK_TOKENS
        return number < len(chain.hashes) and chain.hashes[number] in self.index.pending

    def usage(self) -> CacheUsage:
        """Return what is free, cached and used now, with shared blocks counted once."""
        return measure(self.groups, self.pools, self.index, self.sequences, self.pool_bytes)

    def clear(self) -> None:
        """Forget all blocks that nobody holds, and let those in use not be found."""
        self.index.clear()

    def check(self) -> None:
        """Assert that every block is free, cached or held by as many sequences as it counts."""
        for pool in self.pools:
            pool.check()
        self.index.check()
