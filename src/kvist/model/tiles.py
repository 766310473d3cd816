"""How the rows of a pass are divided into attention tiles, so that all threads have something to do to the end.

A chunk of attention is a tile and a KV head. A piece of a long prompt takes many times what a decode takes; so it is
divided into as many tiles as give each thread the same, and the longest chunks come first. Bits don't depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Many
from typing import NamedTuple

from kvist.cache.sequence import Sequence
from kvist.kernels import target
from kvist.model.heads import num_key_heads, num_shared
from kvist.model.sharing import Spans, divided, runs
from kvist.spec.model import LayerSpec


class Tile(NamedTuple):
    """Rows that attention takes together; of a sequence each, where they share spans in some layer group."""

    row: int
    num_rows: int
    shared: tuple[Spans, ...] = ()

    @property
    def is_mixed(self) -> bool:
        return bool(self.shared)


class Tiling(NamedTuple):
    """Rows of a sequence are divided evenly, into whole units of ``unit_rows`` (but the last), ``most_rows`` at most.

    Their number of tiles is a multiple of ``least_tiles``, where there are enough units.
    """

    most_rows: int
    unit_rows: int = 1
    least_tiles: int = 1

    def divide(self, row: int, count: int) -> list[Tile]:
        """The tiles of ``count`` rows from ``row`` on."""
        if count == 1:
            return [Tile(row, 1)]
        num_tiles = -(-count // self.most_rows)
        num_tiles = -(-num_tiles // self.least_tiles) * self.least_tiles
        size = -(-count // num_tiles)
        size = min(self.most_rows, -(-size // self.unit_rows) * self.unit_rows)
        return [Tile(first, min(size, row + count - first)) for first in range(row, row + count, size)]


def unit_rows(layer: LayerSpec) -> int:
    """Rows whose queries of a KV head are whole groups of the kernel's."""
    share = num_shared(layer)
    return math.lcm(target.current().query_rows, share) // share


def least_tiles(layer: LayerSpec, num_threads: int) -> int:
    """Tiles of which the chunks can be dealt out evenly to the threads."""
    return num_threads // math.gcd(num_threads, num_key_heads(layer))


def tiles_of(
    pieces: Many[tuple[int, int]],
    alone: Many[tuple[int, Sequence]],
    slots: Many[int],
    tiling: Tiling,
    mixed_tiles: int,
) -> list[Tile]:
    """Divide a pass's rows into tiles, what takes longest first.

    ``pieces``: (first row, rows) of each sequence that see by one rule. ``alone``: (row, sequence) of those that may
    share spans; where they do they are divided into ``mixed_tiles`` at least, if they can be. ``slots`` by row.
    """
    mixed = [run for run in runs(alone) if run.num_rows > 1] if len(alone) > 1 else []
    members = {row for run in mixed for row in range(run.row, run.row + run.num_rows)}
    tiles = [tile for row, count in pieces if row not in members for tile in tiling.divide(row, count)]
    tiles += [
        Tile(piece.row, piece.num_rows, piece.shared if piece.num_rows > 1 else ())
        for run in mixed
        for piece in divided(run, tiling.most_rows, mixed_tiles)
    ]
    if len(tiles) > 1:
        tiles.sort(key=lambda tile: -tile.num_rows * slots[tile.row])
    return tiles
