"""The index of what the pools' blocks hold, so that a prompt that begins as an earlier one did computes less.

An entry stands for the tokens of one block after all tokens before them. It has a block in each layer group whose pool
still keeps one. Whole blocks of running sequences are entries as soon as they are computed; a sequence's last, partly
filled one when it is released. Knows no arrays and no requests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from kvist.cache.block_table import Table
from kvist.cache.chain import BLOCK_KEY, TOKEN_BYTES, Chain, block_hash, key_ids, num_shared
from kvist.cache.explain import NUM_AROUND, Evictions, Miss
from kvist.cache.pool import BlockPool
from kvist.spec.cache import BLOCK_TOKENS


@dataclass(eq=False)
class Entry:
    """Tokens ``key`` after ``parent``, and the block of each group that holds them (None: evicted)."""

    name: bytes
    parent: bytes
    key: bytes
    blocks: list[int | None]

    def block(self, group: int) -> int:
        """The block of a group that is known to have one."""
        block = self.blocks[group]
        assert block is not None, (group, self.blocks)
        return block


@dataclass(frozen=True)
class Hit:
    """The first ``num_tokens`` of a prompt are cached. ``entries`` by block number; None where no group needs one.

    Where ``num_tokens`` ends inside a block, the last entry's block begins with the tokens wanted.
    """

    num_tokens: int
    entries: tuple[Entry | None, ...]


class PrefixIndex:
    """Entries by hash, by parent and by block. ``clock`` gives seconds, for explaining what was evicted when."""

    def __init__(self, pools: tuple[BlockPool, ...], clock: Callable[[], float]) -> None:
        self._pools = pools
        self._clock = clock
        self._entries: dict[bytes, Entry] = {}
        self._children: dict[bytes, list[Entry]] = {}  # by parent, sorted by key; none is another's beginning
        self._by_block: tuple[dict[int, Entry], ...] = tuple({} for _ in pools)
        self.evictions = Evictions()
        self.pending = Pending()
        for group, pool in enumerate(pools):
            pool.on_evict = partial(self._evicted, group)

    @property
    def num_entries(self) -> int:
        return len(self._entries)

    # --- finding ---

    def find(self, chain: Chain) -> Hit:
        """Return the longest cached beginning of a prompt, its last token excepted: that one is always computed.

        Every group must have the blocks of all tokens that the next query sees. Changes nothing.
        """
        limit = max(0, chain.num_tokens - 1)
        needing_all = [number for number, group in enumerate(chain.scope.groups) if not group.first_kept(limit)]
        entries = self._whole(chain, limit, needing_all)
        runs = [
            range(1, len(entries) + 1) if group in needing_all else self._runs(entries, group)
            for group in range(len(self._pools))
        ]
        for number in range(len(entries), -1, -1):
            rest = chain.key[BLOCK_KEY * number : min(BLOCK_KEY * (number + 1), TOKEN_BYTES * limit)]
            for entry, count in self._nearest(chain.parent(number), rest):
                if count and self._suffices(chain, runs, number, count, entry):
                    return Hit(BLOCK_TOKENS * number + count, (*entries[:number], entry))
            if self._suffices(chain, runs, number, 0, None):
                return Hit(BLOCK_TOKENS * number, tuple(entries[:number]))
        raise AssertionError("nothing is needed to have no tokens")

    def whole(self, chain: Chain) -> list[Entry | None]:
        """Entries of the whole blocks of a chain; None where there is none."""
        return self._whole(chain, chain.num_tokens, [])

    def num_tokens_in(self, group: int, block: int) -> int:
        """Tokens that can be found in a block."""
        entry = self._by_block[group].get(block)
        return len(entry.key) // TOKEN_BYTES if entry else 0

    def _whole(self, chain: Chain, limit: int, needing_all: list[int]) -> list[Entry | None]:
        """Entries of the whole blocks below ``limit``, up to where a group that needs all of them lacks one.

        Called for every prompt that waits, in every step: hence flat.
        """
        entries: list[Entry | None] = []
        key, parent, start = chain.key, chain.scope.root, 0
        for name in chain.hashes[: limit // BLOCK_TOKENS]:
            entry = self._entries.get(name)
            if entry is not None and (entry.parent != parent or entry.key != key[start : start + BLOCK_KEY]):
                entry = None
            for group in needing_all:
                if entry is None or entry.blocks[group] is None:
                    return entries
            entries.append(entry)
            parent, start = name, start + BLOCK_KEY
        return entries

    @staticmethod
    def _runs(entries: list[Entry | None], group: int) -> list[int]:
        """How many neighbouring blocks up to each number are there."""
        runs: list[int] = []
        for entry in entries:
            is_there = entry is not None and entry.blocks[group] is not None
            runs.append((runs[-1] if runs else 0) + 1 if is_there else 0)
        return runs

    @staticmethod
    def _suffices(chain: Chain, runs: Many[Many[int]], number: int, count: int, last: Entry | None) -> bool:
        """Whether ``number`` whole blocks and the first ``count`` tokens of ``last`` can be used."""
        for index, group in enumerate(chain.scope.groups):
            gap, first = group.dropped_blocks(BLOCK_TOKENS * number + count)
            if gap and number and runs[index][min(gap, number) - 1] < min(gap, number):
                return False
            if first < number and runs[index][number - 1] < number - first:
                return False
            if last and last.blocks[index] is None:
                return False
        return True

    def _nearest(self, parent: bytes, key: bytes) -> list[tuple[Entry, int]]:
        """Children that begin most like ``key``, and with how many tokens, best first."""
        children = self._children.get(parent)
        if not children or not key:
            return []
        at = bisect_left(children, key, key=_key_of)
        found = [(entry, num_shared(entry.key, key)) for entry in children[max(0, at - 1) : at + 1]]
        return sorted(found, key=lambda pair: -pair[1])

    # --- storing ---

    def publish(self, name: bytes, parent: bytes, key: bytes, number: int, tables: Iterable[Table]) -> bool:
        """Let the tokens ``key`` be found in the blocks at ``number`` of these tables.

        Where whole blocks of the same tokens are there already the tables get those, and their own go back: the bytes
        are the same. False where another text has the same hash: what follows on this one can't be told from what
        follows on that.
        """
        entry = self._entries.get(name)
        if entry is None:
            nearest = self._nearest(parent, key)
            if nearest and nearest[0][0].key.startswith(key):
                return True
            entry = self._add(Entry(name, parent, key, [None] * len(self._pools)))
        if entry.key != key or entry.parent != parent:
            return False
        is_whole = len(key) == BLOCK_KEY
        for group, (table, pool) in enumerate(zip(tables, self._pools, strict=True)):
            if table.holds(number):
                mine, theirs = table[number], entry.blocks[group]
                if theirs is None:
                    if not pool.is_published(mine):
                        pool.publish(mine)
                        entry.blocks[group] = mine
                        self._by_block[group][mine] = entry
                elif theirs != mine and is_whole:
                    pool.share(theirs)
                    pool.give_back([mine])
                    table.replace(number, theirs)
        self._remove_if_empty(entry)
        return True

    def _add(self, entry: Entry) -> Entry:
        """Take an entry in; those that are a beginning of it are of no use any more."""
        children = self._children.setdefault(entry.parent, [])
        at = bisect_left(children, entry.key, key=_key_of)
        while at and entry.key.startswith(children[at - 1].key):
            self._discard(children[at - 1])
            children = self._children.setdefault(entry.parent, [])
            at -= 1
        children.insert(at, entry)
        self._entries[entry.name] = entry
        self.evictions.forget(entry.name)
        return entry

    def withdraw(self, group: int, block: int) -> None:
        """Let a published block not be found any more: it is going to be written."""
        entry = self._by_block[group].pop(block)
        entry.blocks[group] = None
        self._pools[group].withdraw(block)
        self._remove_if_empty(entry)

    def clear(self) -> None:
        """Forget everything: cached blocks are free then."""
        for entry in list(self._entries.values()):
            self._discard(entry)

    def _discard(self, entry: Entry) -> None:
        for group, block in enumerate(entry.blocks):
            if block is not None:
                self.withdraw(group, block)

    def _evicted(self, group: int, block: int) -> None:
        entry = self._by_block[group].pop(block)
        entry.blocks[group] = None
        self.evictions.remember(entry.name, self._clock(), group, self._pools[group].num_taken)
        self._remove_if_empty(entry)

    def _remove_if_empty(self, entry: Entry) -> None:
        if all(block is None for block in entry.blocks):
            del self._entries[entry.name]
            children = self._children[entry.parent]
            del children[bisect_left(children, entry.key, key=_key_of)]
            if not children:
                del self._children[entry.parent]

    # --- explaining ---

    def explain(self, chain: Chain, num_found: int, running: Iterable[tuple[bytes, bytes]]) -> Miss | None:
        """Return why no more than ``num_found`` tokens of a prompt were found; None where that's all there are.

        ``running``: of each running sequence of the scope the hash before its last, unfilled block, and its ids there.
        """
        limit = chain.num_tokens - 1
        if num_found >= limit:
            return None
        number, num_inside = divmod(num_found, BLOCK_TOKENS)
        parent = chain.parent(number)
        rest = chain.key[BLOCK_KEY * number : min(BLOCK_KEY * (number + 1), TOKEN_BYTES * limit)]
        gone = self._explain_evicted(chain, number, num_inside, rest)
        if gone:
            return gone
        nearest = self._nearest(parent, rest)
        count = nearest[0][1] if nearest else 0
        computed = max((num_shared(key, rest) for before, key in running if before == parent), default=0)
        if computed > max(count, num_inside):
            return Miss("short", num_found)
        if nearest and count * TOKEN_BYTES < min(len(rest), len(nearest[0][0].key)) and (number or count):
            return self._explain_differs(chain, BLOCK_TOKENS * number + count, nearest[0][0], count)
        return Miss("never_stored", num_found)

    def _explain_evicted(self, chain: Chain, number: int, num_inside: int, rest: bytes) -> Miss | None:
        """The next block was evicted, or stands there without blocks that the prompt would need in some group."""
        names: list[bytes] = []
        is_cut = False
        if len(rest) == BLOCK_KEY:
            is_cut = self.whole(chain)[number] is not None
            names = list(chain.hashes[: number + 1][::-1]) if is_cut else [chain.hashes[number]]
        parent = chain.parent(number)
        longest = min(len(rest) // TOKEN_BYTES, BLOCK_TOKENS - 1)
        names += [block_hash(parent, rest[: TOKEN_BYTES * count]) for count in range(longest, num_inside, -1)]
        found = next((gone for name in names if (gone := self.evictions.find(name))), None)
        position = BLOCK_TOKENS * number + num_inside
        if found:
            time_s, group, num_taken = found
            return Miss("evicted", position, self._clock() - time_s, self._pools[group].num_taken - num_taken)
        return Miss("evicted", position) if is_cut else None

    def _explain_differs(self, chain: Chain, position: int, entry: Entry, count: int) -> Miss:
        theirs = key_ids(entry.key)[count:]
        if len(entry.key) == BLOCK_KEY:
            theirs += key_ids(self._children[entry.name][0].key) if entry.name in self._children else ()
        at, around = TOKEN_BYTES * position, TOKEN_BYTES * NUM_AROUND
        return Miss(
            "differs",
            position,
            shared=key_ids(chain.key[max(0, at - around) : at]),
            ours=key_ids(chain.key[at : at + around]),
            theirs=theirs[:NUM_AROUND],
        )

    def check(self) -> None:
        """Assert that entries, children and published blocks are the same ones, seen from three sides."""
        for name, entry in self._entries.items():
            assert entry.name == name == block_hash(entry.parent, entry.key)
            assert 0 < len(entry.key) <= BLOCK_KEY and any(block is not None for block in entry.blocks)
            assert entry in self._children[entry.parent]
        assert sum(map(len, self._children.values())) == len(self._entries)
        for children in self._children.values():
            for one, other in pairwise(children):
                assert one.key < other.key and not other.key.startswith(one.key), (one.key, other.key)
        for group, (pool, by_block) in enumerate(zip(self._pools, self._by_block, strict=True)):
            published = {block for block in range(pool.num_blocks) if pool.is_published(block)}
            assert published == by_block.keys(), (published, by_block.keys())
            for block, entry in by_block.items():
                assert entry.blocks[group] == block and self._entries[entry.name] is entry


def _key_of(entry: Entry) -> bytes:
    return entry.key


@dataclass
class Pending:
    """Which blocks running sequences are computing now, by hash, and how many of them each."""

    _counts: dict[bytes, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._counts)

    def __contains__(self, name: bytes) -> bool:
        return name in self._counts

    def mark(self, name: bytes) -> None:
        self._counts[name] = self._counts.get(name, 0) + 1

    def unmark(self, name: bytes) -> None:
        self._counts[name] -= 1
        if not self._counts[name]:
            del self._counts[name]
