"""Block ids: which are free, which are kept to be found again, and how many hold each of the others.

Knows no arrays, no tokens and no models. A block is in one of three states:

    free     nobody holds it and nothing in it is wanted
    cached   nobody holds it, but it is published: whoever asks for what it holds may have it
    used     as many hold it as its reference count says; published or not

Free blocks are handed out first, then the least recently used cached ones: those are evicted, and ``on_evict`` is told.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from kvist.errors import CapacityError


class BlockPool:
    """``num_blocks`` ids from 0 up. ``on_evict`` hears of each cached block just before it is handed out anew.

    Ids are handed out lowest first at the start, later the one that came back last first. A chain of blocks that is
    given back from its tail to its head is evicted in that order, too.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], object] = bool) -> None:
        self.num_blocks = num_blocks
        self.on_evict = on_evict
        self.num_taken = 0
        """Blocks that were ever handed out."""
        self.num_evicted = 0
        """Blocks that were ever evicted."""
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._num_owners = [0] * num_blocks
        self._is_published = bytearray(num_blocks)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free) - len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that ``take`` can hand out: free ones, and cached ones that it would evict."""
        return len(self._free) + len(self._cached)

    def num_owners(self, block: int) -> int:
        return self._num_owners[block]

    def is_published(self, block: int) -> bool:
        return bool(self._is_published[block])

    def is_private(self, block: int) -> bool:
        """Whether one owner alone can reach the block, so that writing to it changes nothing for anybody else."""
        return self._num_owners[block] == 1 and not self._is_published[block]

    def take(self, count: int) -> list[int]:
        """Return ``count`` blocks, each with one owner; cached ones are evicted where free ones don't suffice.

        Raises:
            CapacityError: fewer are available; then none is taken or evicted.
        """
        self.require(count)
        num_free = min(count, len(self._free))
        taken = [self._free.pop() for _ in range(num_free)]
        if num_free < count:
            taken += self._evict(count - num_free)
        for block in taken:
            self._num_owners[block] = 1
        self.num_taken += count
        return taken

    def require(self, count: int) -> None:
        """Raise CapacityError where ``take(count)`` would."""
        if count > self.num_available:
            raise CapacityError(
                f"the cache has {self.num_available} free blocks of 16 tokens and {count} are needed; raise kv_budget"
            )

    def _evict(self, count: int) -> list[int]:
        """Return the ``count`` least recently used cached blocks in the order of their ids, one stream in memory."""
        evicted = []
        for _ in range(count):
            block, _ = self._cached.popitem(last=False)
            self._is_published[block] = False
            self.on_evict(block)
            evicted.append(block)
        self.num_evicted += count
        return sorted(evicted)

    def share(self, block: int) -> None:
        """Add an owner to a used or cached block."""
        assert self._num_owners[block] > 0 or block in self._cached, (block, self._num_owners[block])
        if not self._num_owners[block]:
            del self._cached[block]
        self._num_owners[block] += 1

    def give_back(self, blocks: Iterable[int]) -> None:
        """Remove an owner of each block, in this order; those without any are cached if published, else free."""
        for block in blocks:
            assert self._num_owners[block] > 0, (block, self._num_owners[block])
            self._num_owners[block] -= 1
            if not self._num_owners[block]:
                if self._is_published[block]:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def publish(self, block: int) -> None:
        """Let a used block be cached when its last owner gives it back."""
        assert self._num_owners[block] > 0 and not self._is_published[block], (block, self._num_owners[block])
        self._is_published[block] = True

    def withdraw(self, block: int) -> None:
        """Undo ``publish``; a cached block is free then."""
        assert self._is_published[block], block
        self._is_published[block] = False
        if not self._num_owners[block]:
            del self._cached[block]
            self._free.append(block)

    def check(self) -> None:
        """Assert that free, cached and used blocks are all there are, and that each is what its counts say."""
        num_owned = sum(owners > 0 for owners in self._num_owners)
        counts = len(self._free), len(self._cached), num_owned, self.num_blocks
        assert sum(counts[:3]) == self.num_blocks, counts
        assert len(set(self._free)) == len(self._free), "a block is free twice"
        for block in self._free:
            assert self._num_owners[block] == 0 and not self._is_published[block], (block, self._num_owners[block])
        for block in self._cached:
            assert self._num_owners[block] == 0 and self._is_published[block], (block, self._num_owners[block])
        assert not set(self._free) & self._cached.keys(), "a block is both free and cached"
