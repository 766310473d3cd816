"""The cache as a whole: a pool and a place in the store for each layer group, and the sequences that share them."""

from __future__ import annotations

from kvist.cache.pool import BlockPool
from kvist.cache.sequence import Sequence
from kvist.cache.store import Store
from kvist.errors import CapacityError
from kvist.spec.cache import CacheSpec, layer_groups, pool_bytes
from kvist.spec.footprint import STEP_TOKENS
from kvist.spec.model import ModelSpec
from kvist.units import format_bytes


class KvCache:
    """Room for ``num_sequences`` sequences of ``num_tokens`` each, grown in steps of at most ``step_tokens``.

    Reserved and touched at once; ``pool_bytes`` is ``spec.cache.pool_bytes`` of the same numbers times the sequences.

    Raises:
        CapacityError: the memory isn't there.
        SpecError: a codec that the engine only prices.
    """

    def __init__(
        self,
        model: ModelSpec,
        spec: CacheSpec,
        *,
        num_tokens: int,
        num_sequences: int = 1,
        step_tokens: int = STEP_TOKENS,
    ) -> None:
        spec.check_runs()
        if num_tokens < 1:
            smallest = pool_bytes(model, spec, 1, step_tokens)
            raise CapacityError(
                f"a cache needs room for at least one block, {format_bytes(smallest)}; raise --kv-budget"
            )
        self.spec = spec
        self.num_tokens = num_tokens
        self.groups = layer_groups(model, spec)
        num_blocks = tuple(num_sequences * group.peak_blocks(num_tokens, step_tokens) for group in self.groups)
        self.store = Store(self.groups, num_blocks)
        self.pools = tuple(BlockPool(count) for count in num_blocks)

    @property
    def pool_bytes(self) -> int:
        """Bytes that are reserved, whoever uses them."""
        return self.store.num_bytes

    def new_sequence(self) -> Sequence:
        return Sequence(self)

    def check(self) -> None:
        for pool in self.pools:
            pool.check()
