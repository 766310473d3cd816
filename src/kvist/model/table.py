"""What one pass computes, as the flat table that kernels read (``kernels.layout`` says where things stand in it)."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from kvist.cache.sequence import Sequence
from kvist.kernels.layout import (
    BLOCKS,
    CAPPED,
    CELLS,
    GROUP_FIELDS,
    GROUPS,
    MAX_GROUPS,
    NUM_OUTPUTS,
    NUM_ROWS,
    NUM_TILES,
    OUTPUTS,
    POSITIONS,
    ROW_STEP,
    SHARED,
    SINKS,
    SLOTS,
    SPAN_PARTS,
    SPAN_STEP,
    SPAN_TOKENS,
    SPANS,
    TABLE_HEAD,
    TILES,
    TOKENS,
    WINDOWS,
)
from kvist.model.sharing import first_seen, may_share
from kvist.model.tiles import Tile, Tiling, tiles_of
from kvist.spec.cache import BLOCK_TOKENS
from kvist.spec.retention import RetentionSpec

Ints = npt.NDArray[np.int64]

EVERYTHING = 1 << 40
"""More units than any tile has, and more rows than any pass."""

MOST_ROWS = 16
"""Most rows of a chunk of what works row by row: a block's, whose keys share cache lines."""


@dataclass(frozen=True)
class Part:
    """Tokens to append to one sequence, and of which of them logits are wanted."""

    sequence: Sequence
    token_ids: Many[int]
    logits: Literal["last", "all", "none"] = "last"


@dataclass(frozen=True)
class Pass:
    """One pass: its int64 ``table``, and what its chunks are counted by.

    Rows, groups of rows, rows whose spans are attended apart, rows of logits, and parts of attention tiles.
    """

    num_rows: int
    num_row_chunks: int
    num_split_rows: int
    num_outputs: int
    num_tile_parts: int
    table: Ints


def lower(
    parts: Many[Part],
    *,
    tile_rows: int,
    split_rows: int,
    split_chunks: int,
    row_chunks: int = EVERYTHING,
    unit_rows: int = 1,
    least_tiles: int = 1,
) -> Pass:
    """Lower parts whose sequences have grown by their tokens already.

    ``tile_rows``: rows of an attention tile. Spans are attended apart in passes of at most ``split_rows`` rows, in
    about ``split_chunks`` chunks for each KV head; in others a sequence's rows are divided into a multiple of
    ``least_tiles`` tiles, if there are enough units of ``unit_rows``. Rows that are worked on one by one are so in
    about ``row_chunks`` chunks.
    """
    rows = _Rows(parts)
    num_rows, num_groups = len(rows.tokens), len(parts[0].sequence.tables)
    is_apart = num_rows <= split_rows
    tiling = Tiling(tile_rows, unit_rows, 1 if is_apart else least_tiles)
    tiles = tiles_of(rows.pieces, _alone(rows, parts), rows.slots, tiling, 1 if is_apart else split_chunks)
    num_spans, num_units = _num_spans(rows, parts) if is_apart else (0, 0)
    step = max(1, num_units * len(tiles) // split_chunks) if num_spans else EVERYTHING
    num_parts = max(1, -(-num_units // step))
    row_step = max(1, min(MOST_ROWS, num_rows // row_chunks))
    numbers = [0] * TABLE_HEAD
    numbers[ROW_STEP] = row_step
    numbers[NUM_ROWS], numbers[NUM_OUTPUTS], numbers[NUM_TILES] = num_rows, len(rows.outputs), len(tiles)
    numbers[SPANS], numbers[SPAN_STEP], numbers[SPAN_PARTS] = num_spans, step, num_parts
    _write_lists(numbers, rows, tiles)
    assert num_groups <= MAX_GROUPS, num_groups
    tables: list[Ints] = []
    shared_size = 2 * len(tiles) if any(tile.is_mixed for tile in tiles) else 0
    end = len(numbers) + num_groups * (2 * num_rows + shared_size)
    for group in range(num_groups):
        blocks = [part.sequence.tables[group].blocks for part in parts]
        at = GROUPS + GROUP_FIELDS * group
        numbers[at + CELLS], numbers[at + BLOCKS] = len(numbers), len(numbers) + num_rows
        numbers += _cells_of(rows, blocks)
        for (_, count), ids in zip(rows.parts, blocks, strict=True):
            numbers += [end] * count
            end += ids.size
        if shared_size:
            numbers[at + SHARED] = len(numbers)
            for tile in tiles:
                numbers += tile.shared[group] if tile.is_mixed else (0, 0)
        tables += blocks
    return Pass(
        num_rows=num_rows,
        num_row_chunks=-(-num_rows // row_step),
        num_split_rows=num_rows if num_spans else 0,
        num_outputs=len(rows.outputs),
        num_tile_parts=len(tiles) * num_parts,
        table=np.concatenate([np.array(numbers, np.int64), *tables]),
    )


def _write_lists(numbers: list[int], rows: _Rows, tiles: list[Tile]) -> None:
    """Add what is listed once, whatever the layer group, and say in the head where."""
    lists = {TOKENS: rows.tokens, POSITIONS: rows.positions, SLOTS: rows.slots, OUTPUTS: rows.outputs}
    if any(rows.windows):
        lists[WINDOWS] = rows.windows
    if any(rows.sinks):
        lists |= {SINKS: rows.sinks, CAPPED: rows.capped}
    for name, found in lists.items():
        numbers[name] = len(numbers)
        numbers += found
    numbers[TILES] = len(numbers)
    for tile in tiles:
        numbers += (tile.row, tile.num_rows, int(tile.is_mixed))


class _Rows:
    """A pass's rows: lists by row, the rows of which logits are wanted, and for each part its (first row, rows).

    ``pieces``: (first row, rows) that see by one rule: a part, or two where a sequence begins to slide in it. Lists,
    not arrays: a pass of one row is the most frequent, and a list of one costs a tenth of an array of one.
    """

    def __init__(self, parts: Many[Part]) -> None:
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.slots: list[int] = []
        self.windows: list[int] = []
        self.sinks: list[int] = []
        self.capped: list[int] = []
        self.outputs: list[int] = []
        self.parts: list[tuple[int, int]] = []
        self.pieces: list[tuple[int, int]] = []
        for part in parts:
            sequence, count, row = part.sequence, len(part.token_ids), len(self.tokens)
            self.parts.append((row, count))
            self.tokens += part.token_ids
            self.positions += range(sequence.num_tokens - count, sequence.num_tokens)
            self.slots += range(sequence.num_slots - count, sequence.num_slots)
            if part.logits != "none":
                self.outputs += range(row if part.logits == "all" else row + count - 1, row + count)
            self._add_pieces(row, count, sequence.retention)

    def _add_pieces(self, row: int, count: int, retention: RetentionSpec) -> None:
        """What a part's rows see: everything at first, then by its retention."""
        if not retention.is_bounded:
            self.pieces.append((row, count))
            self.windows += [0] * count
            self.sinks += [0] * count
            self.capped += self.positions[row:]
            return
        num_all = min(count, max(0, retention.starts_at - self.positions[row]))
        for first, rows, window, sinks in (
            (row, num_all, 0, 0),
            (row + num_all, count - num_all, retention.num_kept, retention.num_sinks),
        ):
            if rows:
                self.pieces.append((first, rows))
                self.windows += [window] * rows
                self.sinks += [sinks] * rows
                positions = self.positions[first : first + rows]
                self.capped += [min(at, sinks + window - 1) for at in positions] if sinks else positions


def _alone(rows: _Rows, parts: Many[Part]) -> list[tuple[int, Sequence]]:
    """(row, sequence) of parts of one row that may share a span with others."""
    return [
        (row, part.sequence)
        for (row, count), part in zip(rows.parts, parts, strict=True)
        if count == 1 and rows.slots[row] >= SPAN_TOKENS - 1 and may_share(part.sequence)
    ]


def _num_spans(rows: _Rows, parts: Many[Part]) -> tuple[int, int]:
    """The most spans that a tile reaches over, and the most units, sinks included; no spans where it is one unit."""
    num_spans = num_units = 0
    for (row, count), part in zip(rows.parts, parts, strict=True):
        last = rows.slots[row + count - 1] // SPAN_TOKENS
        for group in range(len(part.sequence.tables)):
            spans = last - first_seen(part.sequence, group, rows.positions[row]) // SPAN_TOKENS + 1
            num_spans, num_units = max(num_spans, spans), max(num_units, spans + bool(rows.sinks[row + count - 1]))
    return (num_spans, num_units) if num_units > 1 else (0, 0)


def _cells_of(rows: _Rows, blocks: list[Ints]) -> list[int]:
    """The cell that each row is written to: a block's id times 16, plus the place in it."""
    cells: list[int] = []
    for (row, count), found in zip(rows.parts, blocks, strict=True):
        slot = rows.slots[row]
        if count == 1:
            cells.append(int(found[slot // BLOCK_TOKENS]) * BLOCK_TOKENS + slot % BLOCK_TOKENS)
        else:
            slots = np.arange(slot, slot + count)
            cells += (found[slots // BLOCK_TOKENS] * BLOCK_TOKENS + slots % BLOCK_TOKENS).tolist()
    return cells
