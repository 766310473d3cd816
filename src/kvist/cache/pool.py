"""Block ids: which are free, and how many hold each of the others. Knows no arrays, no tokens and no models."""

from __future__ import annotations

from kvist.errors import CapacityError


class BlockPool:
    """``num_blocks`` ids from 0 up. A block is free, or held by as many owners as its reference count says.

    Ids are handed out lowest first at the start and then in the order in which they came back.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._num_owners = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def take(self, count: int) -> list[int]:
        """Return ``count`` blocks, each with one owner.

        Raises:
            CapacityError: fewer are free; then none is taken.
        """
        if count > len(self._free):
            raise CapacityError(
                f"the cache has {len(self._free)} free blocks of 16 tokens and {count} are needed; raise --kv-budget"
            )
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._num_owners[block] = 1
        return taken

    def share(self, block: int) -> None:
        """Add an owner to a block in use."""
        assert self._num_owners[block] > 0, (block, self._num_owners[block])
        self._num_owners[block] += 1

    def give_back(self, blocks: list[int]) -> None:
        """Remove an owner of each block; those without any are free."""
        for block in blocks:
            assert self._num_owners[block] > 0, (block, self._num_owners[block])
            self._num_owners[block] -= 1
            if not self._num_owners[block]:
                self._free.append(block)

    def check(self) -> None:
        """Assert that free and used blocks are all there are, and that no free one has an owner."""
        num_owned = sum(owners > 0 for owners in self._num_owners)
        assert len(self._free) + num_owned == self.num_blocks, (len(self._free), num_owned, self.num_blocks)
        assert len(set(self._free)) == len(self._free), "a block is free twice"
        assert all(self._num_owners[block] == 0 for block in self._free), "a free block has an owner"
