"""One request's tokens in the cache: a block table per layer group, shared, grown, truncated and given back.

Three numbers that are not one: ``num_tokens`` (the next token's position), ``num_slots`` (tokens that stand in the
table, in order), and the first kept token of each group (``Table.first_block``).
"""

from __future__ import annotations

from collections.abc import Sequence as TokenIds
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvist.cache.block_table import Table
from kvist.cache.chain import BLOCK_KEY, TOKEN_BYTES, Chain, Scope, block_hash, token_key
from kvist.cache.explain import Miss
from kvist.spec.cache import BLOCK_TOKENS, num_blocks
from kvist.spec.retention import ALL, RetentionSpec

if TYPE_CHECKING:
    from kvist.cache.kv_cache import KvCache


@dataclass(frozen=True)
class Reuse:
    """The first ``num_tokens`` of a prompt came from the cache. ``miss`` says why no more did; None: all did."""

    num_tokens: int
    miss: Miss | None


class Sequence:
    """Tokens 0 to ``num_tokens`` - 1, of which each group holds what later queries can still see.

    ``is_shared``: finds blocks of other sequences of its ``scope``, and publishes its own once their ids are recorded.
    """

    def __init__(self, cache: KvCache, scope: Scope, *, is_shared: bool = True, retention: RetentionSpec = ALL) -> None:
        self.cache = cache
        self.scope = scope
        self.is_shared = is_shared
        self.retention = retention
        self.num_tokens = 0
        self.tables = tuple(Table(num_blocks(group.num_sinks)) for group in scope.groups)
        self._key = bytearray()  # ids of the recorded tokens
        self._hashes: list[bytes] = []  # of the whole recorded blocks
        self._marks: set[bytes] = set()  # hashes that others may wait for
        cache.sequences.add(self)

    @property
    def num_slots(self) -> int:
        """Tokens that stand in the table; slot s is token s."""
        return self.num_tokens

    @property
    def num_recorded(self) -> int:
        """Tokens whose ids are known; as many as ``num_tokens`` between two steps of a sequence that is shared."""
        return len(self._key) // TOKEN_BYTES

    @property
    def logical_bytes(self) -> int:
        """Bytes of the keys and values that are still needed."""
        return sum(group.token_bytes * group.num_logical_tokens(self.num_tokens) for group in self.scope.groups)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the blocks that are held, whoever holds them besides."""
        return sum(
            group.block_bytes * len(table.held) for group, table in zip(self.scope.groups, self.tables, strict=True)
        )

    @property
    def tail(self) -> tuple[bytes, bytes]:
        """The hash before the first recorded token that is in no whole block, and the ids from there on."""
        return self._parent(), bytes(self._key[BLOCK_KEY * len(self._hashes) :])

    def _parent(self) -> bytes:
        return self._hashes[-1] if self._hashes else self.scope.root

    # --- others' blocks ---

    def reuse(self, token_ids: TokenIds[int]) -> Reuse:
        """Take over the longest cached beginning of a prompt, its last token excepted; for an empty sequence.

        Its blocks are held from now on. The last one is copied when ``grow`` first writes to it.
        """
        assert not self.num_tokens, self.num_tokens
        if not self.is_shared:
            return Reuse(0, Miss("off", 0))
        end = self.retention.starts_at + 1 if self.retention.starts_at else len(token_ids)  # nothing is shared past it
        chain = Chain(self.scope, token_key(token_ids[:end]))
        hit = self.cache.index.find(chain)
        for number, (group, table) in enumerate(zip(self.scope.groups, self.tables, strict=True)):
            (gap, first), pool = group.dropped_blocks(hit.num_tokens), self.cache.pools[number]
            needed = (*hit.entries[:gap], *hit.entries[first:])
            blocks = [entry.block(number) for entry in needed if entry]
            for block in blocks:
                pool.share(block)
            table.start(min(first, num_blocks(hit.num_tokens)), blocks)
        self.num_tokens = hit.num_tokens
        self._key += chain.key[: TOKEN_BYTES * hit.num_tokens]
        self._hashes += chain.hashes[: hit.num_tokens // BLOCK_TOKENS]
        running = (sequence.tail for sequence in self.cache.sequences if sequence.can_explain(self))
        return Reuse(hit.num_tokens, self.cache.index.explain(chain, hit.num_tokens, running))

    def can_explain(self, other: Sequence) -> bool:
        """Whether ``other`` may hear of this sequence's tokens."""
        return self.is_shared and self.scope.root == other.scope.root and self is not other

    def plan(self, token_ids: TokenIds[int]) -> None:
        """Tell others that this running sequence is going to compute a prompt's blocks, so that they may wait for them.

        A mark goes when its block is recorded, and all of them when the sequence is released or truncated.
        """
        self._unmark()
        if self.is_shared:
            chain = Chain(self.scope, token_key(token_ids))
            self._marks.update(chain.hashes[len(self._hashes) :])
            for name in self._marks:
                self.cache.index.pending.mark(name)

    def _unmark(self) -> None:
        for name in self._marks:
            self.cache.index.pending.unmark(name)
        self._marks.clear()

    def record(self, token_ids: TokenIds[int]) -> None:
        """Note the ids of the next computed tokens; whole blocks can be found from now on.

        Where an equal block is there already, this sequence goes on with that one and gives its own back. From where a
        sequence slides on, nothing is noted any more: its tokens are no longer what others would compute.
        """
        if not self.is_shared:
            return
        if self.retention.starts_at:
            token_ids = token_ids[: max(0, self.retention.starts_at - self.num_recorded)]
        self._key += token_key(token_ids)
        assert self.num_recorded <= self.num_tokens, (self.num_recorded, self.num_tokens)
        while len(self._key) >= BLOCK_KEY * (len(self._hashes) + 1):
            number, parent = len(self._hashes), self._parent()
            key = bytes(self._key[BLOCK_KEY * number : BLOCK_KEY * (number + 1)])
            name = block_hash(parent, key)
            self.cache.index.publish(name, parent, key, number, self.tables)
            self._hashes.append(name)
            if name in self._marks:
                self._marks.remove(name)
                self.cache.index.pending.unmark(name)

    def _publish_tail(self) -> None:
        """Let the last, partly filled block be found."""
        parent, key = self.tail
        if self.is_shared and key:
            self.cache.index.publish(block_hash(parent, key), parent, key, len(self._hashes), self.tables)

    def fork(self) -> Sequence:
        """Return a sequence of the same tokens that shares every block; who first writes to the last one copies it."""
        other = Sequence(self.cache, self.scope, is_shared=self.is_shared, retention=self.retention)
        for table, twin, pool in zip(self.tables, other.tables, self.cache.pools, strict=True):
            for block in table.held:
                pool.share(block)
            twin.start(table.first_block, table.held)
        other.num_tokens = self.num_tokens
        other._key += self._key
        other._hashes += self._hashes
        return other

    # --- room ---

    def blocks_needed(self, num_new: int) -> tuple[int, ...]:
        """Blocks of each group's pool that ``grow(num_new)`` can't do without."""
        target, is_inside = num_blocks(self.num_tokens + num_new), num_new and self.num_tokens % BLOCK_TOKENS
        return tuple(
            target - table.num_blocks + (1 if is_inside and pool.num_owners(self._last(table)) > 1 else 0)
            for table, pool in zip(self.tables, self.cache.pools, strict=True)
        )

    def blocks_missing(self, num_new: int) -> int:
        """Blocks that ``grow(num_new)`` lacks, in all pools together; 0: it fits."""
        return sum(
            max(0, needed - pool.num_available)
            for needed, pool in zip(self.blocks_needed(num_new), self.cache.pools, strict=True)
        )

    def _last(self, table: Table) -> int:
        """The block that the next token goes to, where it is partly filled."""
        return table[self.num_tokens // BLOCK_TOKENS]

    def grow(self, num_new: int) -> None:
        """Take the blocks for ``num_new`` more tokens.

        A partly filled last block that others hold, or could find, is copied: they won't see what is written.

        Raises:
            CapacityError: too few blocks are available; then nothing has changed.
        """
        needed = self.blocks_needed(num_new)
        for pool, count in zip(self.cache.pools, needed, strict=True):
            pool.require(count)
        target, is_inside = num_blocks(self.num_tokens + num_new), num_new and self.num_tokens % BLOCK_TOKENS
        for group, (table, pool) in enumerate(zip(self.tables, self.cache.pools, strict=True)):
            num_added = target - table.num_blocks
            if is_inside and not pool.is_private(self._last(table)):
                self._own_last(group, num_added)
            if num_added:
                table.extend(pool.take(num_added))
        self.num_tokens += num_new

    def _own_last(self, group: int, num_added: int) -> None:
        """Make the last block this sequence's own: a copy of it; or, where there's no room for one, itself."""
        table, pool = self.tables[group], self.cache.pools[group]
        block = self._last(table)
        if pool.num_owners(block) == 1 and pool.num_available <= num_added:
            self.cache.index.withdraw(group, block)
            return
        (copy,) = pool.take(1)
        self.cache.store.copy_block(group, block, copy)
        table.replace(self.num_tokens // BLOCK_TOKENS, copy)
        pool.give_back([block])

    def drop_unseen(self) -> None:
        """Give back the blocks that have left every window of the queries still to come.

        Called when a step's tokens are settled: those of a step that failed can still be truncated before.
        """
        for group, table, pool in zip(self.scope.groups, self.tables, self.cache.pools, strict=True):
            if group.window is not None:
                pool.give_back(table.drop(group.first_kept(self.num_tokens) // BLOCK_TOKENS))

    def truncate(self, num_tokens: int) -> int:
        """Forget the tokens from ``num_tokens`` on; returns how many are left.

        Where a window's blocks that the next query would need are gone already, none is left, and what was asked for
        has to be computed again.
        """
        assert 0 <= num_tokens <= self.num_tokens, (num_tokens, self.num_tokens)
        is_gone = any(
            group.dropped_blocks(num_tokens)[1] < table.gap[1]
            for group, table in zip(self.scope.groups, self.tables, strict=True)
        )
        kept = 0 if is_gone else num_tokens
        self._cut(kept)
        return kept

    def _cut(self, num_tokens: int) -> None:
        """Give back the blocks from ``num_tokens`` on, the last one first: of a chain, heads are evicted last."""
        for table, pool in zip(self.tables, self.cache.pools, strict=True):
            pool.give_back(reversed(table.cut(num_blocks(num_tokens))))
        if num_tokens < self.num_recorded:
            self._unmark()
            del self._key[TOKEN_BYTES * num_tokens :]
            del self._hashes[num_tokens // BLOCK_TOKENS :]
        self.num_tokens = num_tokens

    def release(self) -> None:
        """Give everything back; what was recorded can still be found, the last block included."""
        self._publish_tail()
        self._unmark()
        self._cut(0)

    def check(self) -> None:
        """Assert that each table holds exactly the blocks that its tokens need, and that ids and hashes fit them."""
        for group, table, pool in zip(self.scope.groups, self.tables, self.cache.pools, strict=True):
            assert table.num_blocks == num_blocks(self.num_tokens), (table.num_blocks, self.num_tokens)
            first = min(group.first_kept(self.num_tokens) // BLOCK_TOKENS, table.num_blocks)
            assert table.first_block <= first, (table.first_block, first)
            assert all(pool.num_owners(block) > 0 for block in table.held), table.held
        assert self.num_recorded <= self.num_tokens, (self.num_recorded, self.num_tokens)
        assert tuple(self._hashes) == Chain(self.scope, bytes(self._key)).hashes
        assert all(name in self.cache.index.pending for name in self._marks)
