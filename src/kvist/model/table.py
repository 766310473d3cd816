"""What one pass computes, as the flat table that kernels read (``kernels.layout`` says where things stand in it)."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from kvist.cache.sequence import Sequence
from kvist.kernels.layout import (
    GROUPS,
    MAX_GROUPS,
    NUM_OUTPUTS,
    NUM_ROWS,
    NUM_TILES,
    OUTPUTS,
    POSITIONS,
    SLOTS,
    SPAN_STEP,
    SPAN_TOKENS,
    SPANS,
    TABLE_HEAD,
    TILE_FIELDS,
    TILES,
    TOKENS,
)
from kvist.spec.cache import BLOCK_TOKENS

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """Tokens to append to one sequence, and of which of them logits are wanted."""

    sequence: Sequence
    token_ids: Many[int]
    logits: Literal["last", "all", "none"] = "last"


@dataclass(frozen=True)
class Pass:
    """One pass: its int64 ``table``, and what its chunks are counted by.

    Rows, rows whose spans are attended apart, rows of logits, and parts of attention tiles.
    """

    num_rows: int
    num_split_rows: int
    num_outputs: int
    num_tile_parts: int
    table: Ints


def lower(parts: Many[Part], *, tile_rows: int, split_rows: int, split_chunks: int) -> Pass:
    """Lower parts whose sequences have grown by their tokens already.

    ``tile_rows``: rows of an attention tile. Spans are attended apart in passes of at most ``split_rows`` rows, in
    about ``split_chunks`` chunks for each KV head.
    """
    rows = _Rows(parts)
    tiles = _tiles_of(rows, tile_rows)
    num_rows, num_outputs, num_tiles = len(rows.tokens), len(rows.outputs), len(tiles) // TILE_FIELDS
    num_spans = _num_spans(rows) if num_rows <= split_rows else 0
    step = max(1, num_spans * num_tiles // split_chunks)
    head = [0] * TABLE_HEAD
    head[NUM_ROWS], head[NUM_OUTPUTS], head[NUM_TILES] = num_rows, num_outputs, num_tiles
    head[SPANS], head[SPAN_STEP] = num_spans, step
    lists = {
        TOKENS: rows.tokens,
        POSITIONS: rows.positions,
        SLOTS: rows.slots,
        OUTPUTS: rows.outputs,
        TILES: tiles,
    }
    numbers = list(head)
    for name, found in lists.items():
        numbers[name] = len(numbers)
        numbers += found
    num_groups = len(parts[0].sequence.tables)
    assert num_groups <= MAX_GROUPS, num_groups
    tables: list[Ints] = []
    end = len(numbers) + num_groups * (num_rows + len(parts))
    for group in range(num_groups):
        blocks = [part.sequence.tables[group].blocks for part in parts]
        numbers[GROUPS + 2 * group], numbers[GROUPS + 2 * group + 1] = len(numbers), len(numbers) + num_rows
        numbers += _cells_of(rows, blocks)
        for ids in blocks:
            numbers.append(end)
            end += ids.size
        tables += blocks
    return Pass(
        num_rows=num_rows,
        num_split_rows=num_rows if num_spans else 0,
        num_outputs=num_outputs,
        num_tile_parts=num_tiles * max(1, -(-num_spans // step)),
        table=np.concatenate([np.array(numbers, np.int64), *tables]),
    )


class _Rows:
    """A pass's rows: lists by row, the rows of which logits are wanted, and for each part its (first row, rows).

    Lists, not arrays: a pass of one row is the most frequent, and a list of one costs a tenth of an array of one.
    """

    def __init__(self, parts: Many[Part]) -> None:
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.slots: list[int] = []
        self.outputs: list[int] = []
        self.parts: list[tuple[int, int]] = []
        for part in parts:
            sequence, count, row = part.sequence, len(part.token_ids), len(self.tokens)
            self.parts.append((row, count))
            self.tokens += part.token_ids
            self.positions += range(sequence.num_tokens - count, sequence.num_tokens)
            self.slots += range(sequence.num_slots - count, sequence.num_slots)
            if part.logits != "none":
                self.outputs += range(row if part.logits == "all" else row + count - 1, row + count)


def _tiles_of(rows: _Rows, tile_rows: int) -> list[int]:
    """(first row, rows, first slot, part) of each attention tile, one after the other."""
    tiles: list[int] = []
    for number, (row, count) in enumerate(rows.parts):
        for first in range(row, row + count, tile_rows):
            tiles += (first, min(tile_rows, row + count - first), rows.slots[first], number)
    return tiles


def _num_spans(rows: _Rows) -> int:
    """The most spans that a row sees; 0 where nobody sees more than one."""
    num_spans = max(rows.slots) // SPAN_TOKENS + 1
    return num_spans if num_spans > 1 else 0


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
