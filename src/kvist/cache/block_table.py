"""A sequence's blocks in one layer group, by block number."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class Table:
    """Block ids by block number; those below ``first_block`` are given back, but for the first ``num_first``."""

    def __init__(self, num_first: int = 0) -> None:
        self._ids = np.empty(64, np.int64)
        self.num_first = num_first
        self.num_blocks = 0
        self.first_block = 0

    @property
    def blocks(self) -> npt.NDArray[np.int64]:
        """Block ids by block number, as a view; ids of blocks that are given back are stale."""
        return self._ids[: self.num_blocks]

    @property
    def held(self) -> list[int]:
        """Ids of the blocks that aren't given back."""
        return self._held_from(0)

    @property
    def numbers(self) -> list[int]:
        """Numbers of the blocks that aren't given back, in the order of ``held``."""
        first, end = self.gap
        return [*range(min(first, self.num_blocks)), *range(end, self.num_blocks)]

    @property
    def gap(self) -> tuple[int, int]:
        """The numbers of the first block that is given back and of the next that is held; equal where none is."""
        return self.num_first, max(self.num_first, self.first_block)

    def holds(self, number: int) -> bool:
        """Whether the block of this number is held."""
        return 0 <= number < self.num_blocks and not self.gap[0] <= number < self.gap[1]

    def _held_from(self, number: int) -> list[int]:
        first, end = self.gap
        return self._listed(number, min(first, self.num_blocks)) + self._listed(max(number, end), self.num_blocks)

    def _listed(self, first: int, end: int) -> list[int]:
        ids: list[int] = self._ids[first:end].tolist()
        return ids

    def __getitem__(self, number: int) -> int:
        """The id of a held block."""
        assert self.holds(number), (self.gap, number, self.num_blocks)
        return int(self._ids[number])

    def replace(self, number: int, block: int) -> None:
        """Put another block in the place of a held one."""
        assert self.holds(number), (self.gap, number, self.num_blocks)
        self._ids[number] = block

    def start(self, first_block: int, blocks: list[int]) -> None:
        """Begin an empty table with ``blocks``: the first ones, then those from number ``first_block`` on.

        As if those between had been given back.
        """
        assert not self.num_blocks, self.num_blocks
        if first_block <= self.num_first:
            self.extend(blocks)
            return
        self.extend(blocks[: self.num_first])
        assert self.num_blocks == self.num_first, (self.num_blocks, self.num_first)
        self._reserve(first_block)
        self._ids[self.num_first : first_block] = 0  # stale, but an id
        self.num_blocks = self.first_block = first_block
        self.extend(blocks[self.num_first :])

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
        cut = self._held_from(num_blocks)
        self.num_blocks = min(self.num_blocks, num_blocks)
        self.first_block = min(self.first_block, self.num_blocks) if self.num_blocks > self.num_first else 0
        return cut

    def drop(self, first_block: int) -> list[int]:
        """Forget the held blocks below number ``first_block``, the first ones excepted; returns them."""
        gap, start = self.gap
        end = max(start, min(first_block, self.num_blocks))
        if end > gap:
            self.first_block = end
        return self._listed(start, end)
