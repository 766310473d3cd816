"""One request's tokens in the cache: a block table per layer group, shared, grown, truncated and given back.

Three numbers that are not one: ``num_tokens`` (the next token's position), ``num_slots`` (tokens that stand in the
table, in order), and the first kept token of each group (``Table.first_block``).
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as TokenIds
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvist.cache.attended import Attended
from kvist.cache.block_table import Table
from kvist.cache.chain import TOKEN_BYTES, Chain, Scope, block_hash, shareable, token_key
from kvist.cache.explain import Miss
from kvist.cache.recorded import Recorded
from kvist.cache.retention import end_tallied, first_tallied
from kvist.errors import RequestError
from kvist.spec.cache import BLOCK_TOKENS, num_blocks
from kvist.spec.retention import ALL, RetentionSpec

if TYPE_CHECKING:
    from kvist.cache.kv_cache import KvCache


@dataclass(frozen=True)
class Reuse:
    """The first ``num_tokens`` of a prompt came from the cache. ``miss`` says why no more did; None: all did."""

    num_tokens: int
    miss: Miss | None


@dataclass(frozen=True)
class Past:
    """What a sequence held besides its blocks: recorded ids and their hashes, and counts as ``Sequence`` has them."""

    num_tokens: int
    key: bytes
    hashes: tuple[bytes, ...]
    num_evicted: int = 0
    num_final: int = 0
    attended: tuple[Attended, ...] = ()


class Sequence:
    """Tokens 0 to ``num_tokens`` - 1, of which each group holds what later queries can still see.

    ``is_shared``: finds blocks of other sequences of its ``scope``, and publishes its own once their ids are recorded.
    ``prompt_tokens`` are its request's prompt: where ``snapkv`` chooses, however often it is computed again.
    """

    def __init__(
        self,
        cache: KvCache,
        scope: Scope,
        *,
        is_shared: bool = True,
        retention: RetentionSpec = ALL,
        prompt_tokens: int = 0,
    ) -> None:
        self.cache = cache
        self.scope = scope
        self.is_shared = is_shared
        self.retention = retention
        self.prompt_tokens = prompt_tokens
        self.num_tokens = 0
        self.num_evicted = 0
        self.attended = tuple(Attended() for _ in scope.groups) if retention.is_scored else ()
        self._num_final = 0  # tokens that can't be taken back one by one: others were chosen by their attention
        self.tables = tuple(Table(num_blocks(group.num_sinks)) for group in scope.groups)
        self._recorded = Recorded(scope, cache.index.pending)
        self._has_windows = any(group.window is not None for group in scope.groups)
        self._room = 0  # tokens that its own last blocks are known to take; 0: look
        cache.sequences.add(self)

    @property
    def num_slots(self) -> int:
        """Tokens that the table counts, in the order of its blocks: where the next one is written.

        Slot s is token s, unless tokens were chosen by their attention and moved.
        """
        return self.num_tokens - self.num_evicted

    @property
    def num_recorded(self) -> int:
        """Tokens whose ids are known; as many as ``num_tokens`` between two steps of a sequence that is shared."""
        return self._recorded.num_tokens

    @property
    def logical_bytes(self) -> int:
        """Bytes of the keys and values that are still needed."""
        return sum(
            group.token_bytes * group.num_logical_tokens(self.num_tokens, self.prompt_tokens)
            for group in self.scope.groups
        )

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the blocks that are held, whoever holds them besides."""
        return sum(
            group.block_bytes * len(table.held) for group, table in zip(self.scope.groups, self.tables, strict=True)
        )

    @property
    def tail(self) -> tuple[bytes, bytes]:
        """The hash before the first recorded token that is in no whole block, and the ids from there on."""
        return self._recorded.parent, self._recorded.tail

    # --- others' blocks ---

    def reuse(self, token_ids: TokenIds[int]) -> Reuse:
        """Take over the longest cached beginning of a prompt, its last token excepted; for an empty sequence.

        Its blocks are held from now on. The last one is copied when ``grow`` first writes to it.
        """
        assert not self.num_tokens, self.num_tokens
        if not self.is_shared:
            return Reuse(0, Miss("off", 0))
        chain = Chain(self.scope, token_key(shareable(token_ids, self.retention)))
        hit = self.cache.index.find(chain)
        tables = []
        for number, (group, pool) in enumerate(zip(self.scope.groups, self.cache.pools, strict=True)):
            gap, first = group.dropped_blocks(hit.num_tokens)
            blocks = [entry.block(number) for entry in (*hit.entries[:gap], *hit.entries[first:]) if entry]
            for block in blocks:
                pool.share(block)
            tables.append((first, blocks))
        key, hashes = chain.key[: TOKEN_BYTES * hit.num_tokens], chain.hashes[: hit.num_tokens // BLOCK_TOKENS]
        self.start(Past(hit.num_tokens, key, hashes), tables)
        running = (sequence.tail for sequence in self.cache.sequences if sequence.can_explain(self))
        return Reuse(hit.num_tokens, self.cache.index.explain(chain, hit.num_tokens, running))

    def can_explain(self, other: Sequence) -> bool:
        """Whether ``other`` may hear of this sequence's tokens."""
        return self.is_shared and self.scope.root == other.scope.root and self is not other

    def plan(self, token_ids: TokenIds[int]) -> None:
        """Tell others that this running sequence is going to compute a prompt's blocks, so that they may wait for them.

        A mark goes when its block is recorded, and all of them when the sequence is released or truncated.
        """
        if self.is_shared:
            self._recorded.mark(Chain(self.scope, token_key(shareable(token_ids, self.retention))))

    def record(self, token_ids: TokenIds[int]) -> None:
        """Note the ids of the next computed tokens; whole blocks can be found from now on.

        Where an equal block is there already, this sequence goes on with that one and gives its own back. From where a
        sequence slides on, nothing is noted any more: its tokens are no longer what others would compute.
        """
        if not self.is_shared:
            return
        if self.retention.starts_at:
            token_ids = token_ids[: max(0, self.retention.starts_at - self.num_recorded)]
        recorded = self._recorded
        recorded.append(token_ids)
        assert self.num_recorded <= self.num_tokens, (self.num_recorded, self.num_tokens)
        while whole := recorded.next_block():
            name, key = whole
            if not self.cache.index.publish(name, recorded.parent, key, recorded.num_blocks, self.tables):
                self._stop_sharing()
                return
            recorded.close(name)

    def _stop_sharing(self) -> None:
        """Go on without others: what comes next can't be told from what follows on another text."""
        self.is_shared = False
        self._recorded.unmark()
        self._recorded.cut(BLOCK_TOKENS * self._recorded.num_blocks)

    def _publish_tail(self) -> None:
        """Let the last, partly filled block be found."""
        parent, key = self.tail
        if self.is_shared and key:
            self.cache.index.publish(block_hash(parent, key), parent, key, self._recorded.num_blocks, self.tables)

    def fork(self) -> Sequence:
        """Return a sequence of the same tokens that shares every block; who first writes to the last one copies it."""
        other = Sequence(
            self.cache,
            self.scope,
            is_shared=self.is_shared,
            retention=self.retention,
            prompt_tokens=self.prompt_tokens,
        )
        for table, pool in zip(self.tables, self.cache.pools, strict=True):
            for block in table.held:
                pool.share(block)
        self._room = 0
        other.start(self.past, [(table.first_block, table.held) for table in self.tables])
        return other

    @property
    def past(self) -> Past:
        """What this sequence holds, but for the blocks."""
        return Past(
            self.num_tokens,
            *self._recorded.ids,
            self.num_evicted,
            self._num_final,
            tuple(found.copy() for found in self.attended),
        )

    def start(self, past: Past, tables: Iterable[tuple[int, list[int]]]) -> None:
        """Begin an empty sequence with what another held.

        ``tables``: for each group the first block's number and the blocks, as ``Table.start`` takes them; the sequence
        is an owner of each already.
        """
        assert not self.num_tokens, self.num_tokens
        for table, (first, blocks) in zip(self.tables, tables, strict=True):
            table.start(first, blocks)
        self.num_tokens, self.num_evicted, self._num_final = past.num_tokens, past.num_evicted, past.num_final
        if past.attended:
            self.attended = past.attended
        self._recorded.start(past.key, past.hashes)

    # --- room ---

    def blocks_needed(self, num_new: int) -> tuple[int, ...]:
        """Blocks of each group's pool that ``grow(num_new)`` can't do without."""
        if num_new <= self._room:
            return (0,) * len(self.tables)
        target, written = num_blocks(self.num_slots + num_new), self.written(num_new)
        return tuple(
            target - table.num_blocks + sum(pool.num_owners(table[number]) > 1 for number in written)
            for table, pool in zip(self.tables, self.cache.pools, strict=True)
        )

    def written(self, num_new: int) -> range:
        """Numbers of the blocks there are that ``num_new`` more tokens lead to write to, so that they must be its own.

        The last one, where it is partly filled; all of them, where tokens will be chosen and moved.
        """
        end = num_blocks(self.num_slots)
        if self._will_choose(num_new):
            return range(end)
        return range(end - 1 if num_new and self.num_slots % BLOCK_TOKENS else end, end)

    def most_rows(self, num_rows: int) -> int:
        """How many of the next ``num_rows`` tokens may enter in one pass: none past where something is decided."""
        stop = self.retention.next_stop(self.num_tokens, self.prompt_tokens)
        return num_rows if stop is None else min(num_rows, stop - self.num_tokens)

    def _will_choose(self, num_new: int) -> bool:
        """Whether ``drop_unseen`` will move tokens, were there ``num_new`` more."""
        num_tokens = self.num_tokens + num_new
        return self.retention.is_scored and (
            self.retention.num_slots(num_tokens, self.prompt_tokens) < num_tokens - self.num_evicted
        )

    def blocks_missing(self, num_new: int) -> int:
        """Blocks that ``grow(num_new)`` lacks, in all pools together; 0: it fits."""
        return sum(
            max(0, needed - pool.num_available)
            for needed, pool in zip(self.blocks_needed(num_new), self.cache.pools, strict=True)
        )

    def grow(self, num_new: int) -> None:
        """Take the blocks for ``num_new`` more tokens.

        A partly filled last block that others hold, or could find, is copied: they won't see what is written.

        Raises:
            CapacityError: too few blocks are available; then nothing has changed.
        """
        if num_new <= self._room:
            self._room -= num_new
            self.num_tokens += num_new
            return
        needed = self.blocks_needed(num_new)
        for pool, count in zip(self.cache.pools, needed, strict=True):
            pool.require(count)
        target, written = num_blocks(self.num_slots + num_new), self.written(num_new)
        for group, (table, pool) in enumerate(zip(self.tables, self.cache.pools, strict=True)):
            num_added = target - table.num_blocks
            for number in written:
                if not pool.is_private(table[number]):
                    self._own(group, number, num_added)
            if num_added:
                table.extend(pool.take(num_added))
        for found in self.attended:
            found.extend(self.num_tokens, num_new)
        self.num_tokens += num_new
        if not self.retention.is_scored:
            self._room = BLOCK_TOKENS * target - self.num_tokens

    def _own(self, group: int, number: int, num_added: int) -> None:
        """Make a block this sequence's own: a copy of it; or, where there's no room for one, itself."""
        table, pool = self.tables[group], self.cache.pools[group]
        block = table[number]
        if pool.num_owners(block) == 1 and pool.num_available <= num_added:
            self.cache.index.withdraw(group, block)
            return
        (copy,) = pool.take(1)
        self.cache.store.copy_block(group, block, copy)
        table.replace(number, copy)
        pool.give_back([block])

    def drop_unseen(self) -> None:
        """Give back the blocks that have left every window of the queries still to come.

        Where it is time to, the tokens that are kept are chosen and moved to the front. Called when a step's tokens are
        settled: those of a step that failed can still be truncated before.
        """
        if self._will_choose(0):
            self._choose()
            return
        if not self._has_windows:
            return
        for group, table, pool in zip(self.scope.groups, self.tables, self.cache.pools, strict=True):
            if group.window is not None:
                pool.give_back(table.drop(group.first_kept(self.num_tokens) // BLOCK_TOKENS))

    # --- what is kept by its attention ---

    def tallied(self, num_new: int) -> tuple[int, int]:
        """The first slot of the last ``num_new`` tokens whose query's attention counts, and the one after the last."""
        first = first_tallied(self.retention, self.prompt_tokens)
        end = end_tallied(self.retention, self.prompt_tokens)
        if first is None:
            return 0, 0
        first = max(first, self.num_tokens - num_new)
        end = self.num_tokens if end is None else min(end, self.num_tokens)
        return (first - self.num_evicted, end - self.num_evicted) if first < end else (0, 0)

    def add_tallies(self, sums: TokenIds[npt.NDArray[np.int64]]) -> None:
        """Note the attention that a pass's queries paid to each slot, by group; after it nothing can be taken back."""
        for found, given in zip(self.attended, sums, strict=True):
            found.add(given)
        self._num_final = self.num_tokens

    def _choose(self) -> None:
        """Move what is kept to the front, by group, and give back the blocks behind it."""
        left = self.retention.num_slots(self.num_tokens, self.prompt_tokens)
        assert left == self.retention.num_kept, (self.num_tokens, left, "a pass went past where tokens are chosen")
        for group, (found, table, pool) in enumerate(zip(self.attended, self.tables, self.cache.pools, strict=True)):
            source, target = (
                [(table[slot // BLOCK_TOKENS], slot % BLOCK_TOKENS) for slot in slots.tolist()]
                for slots in found.choose(self.retention)
            )
            assert all(pool.is_private(block) for block, _ in target), "moved over what others hold"
            self.cache.store.move_tokens(group, source, target)
            pool.give_back(reversed(table.cut(num_blocks(left))))
        self.num_evicted = self.num_tokens - left
        self._num_final = self.num_tokens

    # --- taking back ---

    def truncate(self, num_tokens: int) -> int:
        """Forget the tokens from ``num_tokens`` on; returns how many are left.

        Where a window's blocks that the next query would need are gone already, or tokens were chosen by the attention
        of those that are to be forgotten, none is left, and what was asked for has to be computed again.

        Raises:
            RequestError: it doesn't hold so many tokens; then nothing has changed.
        """
        if not 0 <= num_tokens <= self.num_tokens:
            raise RequestError(f"a sequence of {self.num_tokens} tokens can't be cut to {num_tokens} of them")
        is_gone = any(
            group.dropped_blocks(num_tokens)[1] < table.gap[1]
            for group, table in zip(self.scope.groups, self.tables, strict=True)
        )
        kept = 0 if is_gone or num_tokens < self._num_final else num_tokens
        self._cut(kept)
        return kept

    def _cut(self, num_tokens: int) -> None:
        """Give back the blocks from ``num_tokens`` on, the last one first: of a chain, heads are evicted last."""
        if not num_tokens:
            self.num_evicted = self._num_final = 0
        num_slots = num_tokens - self.num_evicted
        for table, pool in zip(self.tables, self.cache.pools, strict=True):
            pool.give_back(reversed(table.cut(num_blocks(num_slots))))
        for found in self.attended:
            found.cut(num_slots)
        self._recorded.cut(num_tokens)
        self.num_tokens, self._room = num_tokens, 0

    def release(self) -> None:
        """Give everything back; what was recorded can still be found, the last block included."""
        self._publish_tail()
        self._recorded.unmark()
        self._cut(0)

    def check(self) -> None:
        """Assert that each table holds exactly the blocks that its tokens need, and that ids and hashes fit them."""
        for group, table, pool in zip(self.scope.groups, self.tables, self.cache.pools, strict=True):
            assert table.num_blocks == num_blocks(self.num_slots), (table.num_blocks, self.num_slots)
            gap = group.dropped_blocks(self.num_tokens)
            assert table.gap[0] == gap[0] and table.gap[1] <= gap[1], (table.gap, gap)
            assert all(pool.num_owners(block) > 0 for block in table.held), table.held
        for found in self.attended:
            assert found.num_slots == self.num_slots, (found.num_slots, self.num_slots)
            assert len(set(found.positions.tolist())) == self.num_slots
        assert self.num_recorded <= self.num_tokens, (self.num_recorded, self.num_tokens)
        self._recorded.check()
