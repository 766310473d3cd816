"""A sequence's blocks in one layer group, by block number."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class Table:
    """Block ids by block number; those below ``first_block`` are given back."""

    def __init__(self) -> None:
        self._ids = np.empty(64, np.int64)
        self.num_blocks = 0
        self.first_block = 0

    @property
    def blocks(self) -> npt.NDArray[np.int64]:
        """Block ids by block number, as a view; ids below ``first_block`` are stale."""
        return self._ids[: self.num_blocks]

    @property
    def held(self) -> list[int]:
        """Ids of the blocks that aren't given back."""
        return self._listed(self.first_block, self.num_blocks)

    def _listed(self, first: int, end: int) -> list[int]:
        ids: list[int] = self._ids[first:end].tolist()
        return ids

    def __getitem__(self, number: int) -> int:
        """The id of a held block."""
        assert self.first_block <= number < self.num_blocks, (self.first_block, number, self.num_blocks)
        return int(self._ids[number])

    def replace(self, number: int, block: int) -> None:
        """Put another block in the place of a held one."""
        assert self.first_block <= number < self.num_blocks, (self.first_block, number, self.num_blocks)
        self._ids[number] = block

    def start(self, first_block: int, blocks: list[int]) -> None:
        """Begin an empty table with blocks from number ``first_block`` on, as if those below were given back."""
        assert not self.num_blocks, self.num_blocks
        self._reserve(first_block)
        self._ids[:first_block] = 0  # stale, but an id
        self.num_blocks = self.first_block = first_block
        self.extend(blocks)

    def extend(self, blocks: list[int]) -> None:
        """Add blocks at the end."""
        end = self.num_blocks + len(blocks)
        self._reserve(end)
        self._ids[self.num_blocks : end] = blocks
        self.num_blocks = end

    def _reserve(self, num_blocks: int) -> None:
        if num_blocks > self._ids.size:
            self._ids = np.resize(self._ids, 2 * num_blocks)

    def cut(self, num_blocks: int) -> list[int]:
        """Forget the blocks from number ``num_blocks`` on; returns those that were held."""
        cut = self._listed(max(num_blocks, self.first_block), self.num_blocks)
        self.num_blocks = min(self.num_blocks, num_blocks)
        self.first_block = min(self.first_block, self.num_blocks)
        return cut

    def drop(self, first_block: int) -> list[int]:
        """Forget the held blocks below number ``first_block``; returns them."""
        end = max(self.first_block, min(first_block, self.num_blocks))
        dropped, self.first_block = self._listed(self.first_block, end), end
        return dropped
