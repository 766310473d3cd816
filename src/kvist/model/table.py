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
    counts = [len(part.token_ids) for part in parts]
    num_rows = sum(counts)
    num_tiles = sum(-(-count // tile_rows) for count in counts)
    num_outputs = sum(
        {"last": 1, "all": count, "none": 0}[part.logits] for part, count in zip(parts, counts, strict=True)
    )
    num_groups = len(parts[0].sequence.tables)
    assert num_groups <= MAX_GROUPS, num_groups
    outputs = TABLE_HEAD + 2 * num_rows
    tiles = outputs + num_outputs
    groups = tiles + TILE_FIELDS * num_tiles
    num_blocks = sum(part.sequence.tables[0].num_blocks for part in parts) if num_groups else 0
    numbers = np.zeros(groups + num_groups * (num_rows + len(parts) + num_blocks), np.int64)
    num_spans = _num_spans(parts) if num_rows <= split_rows else 0
    step = max(1, num_spans * num_tiles // split_chunks)
    numbers[NUM_ROWS], numbers[NUM_OUTPUTS], numbers[NUM_TILES] = num_rows, num_outputs, num_tiles
    numbers[TOKENS], numbers[POSITIONS], numbers[OUTPUTS], numbers[TILES] = (
        TABLE_HEAD,
        TABLE_HEAD + num_rows,
        outputs,
        tiles,
    )
    numbers[SPANS], numbers[SPAN_STEP] = num_spans, step
    _fill_rows(numbers, parts, counts, tile_rows)
    for group in range(num_groups):
        groups = _fill_group(numbers, parts, counts, group, groups)
    return Pass(num_rows, num_rows if num_spans else 0, num_outputs, num_tiles * max(1, -(-num_spans // step)), numbers)


def _num_spans(parts: Many[Part]) -> int:
    """The most spans that a part's last query sees; 0 where nobody sees more than one."""
    num_spans = max((part.sequence.num_tokens - 1) // SPAN_TOKENS + 1 for part in parts)
    return num_spans if num_spans > 1 else 0


def _fill_rows(numbers: Ints, parts: Many[Part], counts: list[int], tile_rows: int) -> None:
    """Tokens, positions, rows of logits, and tiles."""
    row, output, tile = 0, int(numbers[OUTPUTS]), int(numbers[TILES])
    tokens, positions = int(numbers[TOKENS]), int(numbers[POSITIONS])
    for number, (part, count) in enumerate(zip(parts, counts, strict=True)):
        start = part.sequence.num_tokens - count
        numbers[tokens + row : tokens + row + count] = part.token_ids
        numbers[positions + row : positions + row + count] = start if count == 1 else np.arange(start, start + count)
        wanted = {"last": 1, "all": count, "none": 0}[part.logits]
        numbers[output : output + wanted] = np.arange(row + count - wanted, row + count)
        output += wanted
        for first in range(0, count, tile_rows):
            numbers[tile : tile + TILE_FIELDS] = (row + first, min(tile_rows, count - first), start + first, number)
            tile += TILE_FIELDS
        row += count


def _fill_group(numbers: Ints, parts: Many[Part], counts: list[int], group: int, at: int) -> int:
    """Slots to write by row, then where each sequence's blocks start, then those blocks; returns where they end."""
    num_rows = int(numbers[NUM_ROWS])
    starts, blocks = at + num_rows, at + num_rows + len(parts)
    numbers[GROUPS + 2 * group], numbers[GROUPS + 2 * group + 1] = at, starts
    for number, (part, count) in enumerate(zip(parts, counts, strict=True)):
        found = part.sequence.tables[group].blocks
        end = part.sequence.num_tokens
        if count == 1:
            numbers[at] = found[(end - 1) // BLOCK_TOKENS] * BLOCK_TOKENS + (end - 1) % BLOCK_TOKENS
        else:
            positions = np.arange(end - count, end)
            numbers[at : at + count] = found[positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
        at += count
        numbers[starts + number] = blocks
        numbers[blocks : blocks + found.size] = found
        blocks += found.size
    return blocks
