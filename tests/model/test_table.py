"""What a pass is lowered to: lists by row, tiles, cells to write to and block tables, and which logits are wanted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proof.heads import Heads

from kvist.cache.sequence import Sequence
from kvist.kernels import layout
from kvist.model.table import Part, Pass, lower
from kvist.model.tiles import Tiling, least_tiles
from kvist.spec.model import LayerSpec
from kvist.spec.retention import RetentionSpec

HEADS = Heads(16, 3)
TILE_ROWS = 16
CELLS = layout.GROUPS + layout.CELLS


def lowered(parts: list[Part], **settings: int) -> Pass:
    for part in parts:
        part.sequence.grow(len(part.token_ids))
    return lower(parts, **{"tile_rows": TILE_ROWS, "split_rows": 4, "split_chunks": 2} | settings)


def listed(found: Pass, name: int, count: int) -> list[int]:
    start = found.table[name]
    numbers: list[int] = found.table[start : start + count].tolist()
    return numbers


def tiles(found: Pass) -> list[tuple[int, ...]]:
    """(first row, rows, is_mixed) of each tile, in the order in which they are attended."""
    numbers = listed(found, layout.TILES, layout.TILE_FIELDS * int(found.table[layout.NUM_TILES]))
    return list(zip(*[iter(numbers)] * layout.TILE_FIELDS, strict=True))


def cell(sequence: Sequence, slot: int) -> int:
    return int(sequence.tables[0].blocks[slot // 16]) * 16 + slot % 16


PARTS = st.lists(
    st.tuples(st.integers(0, 300), st.just(1) | st.integers(1, 40), st.sampled_from(["last", "all", "none"])),
    min_size=1,
    max_size=6,
)


@given(drawn=PARTS)
def test_every_row_is_listed(drawn: list[tuple[int, int, Any]]) -> None:
    cache = HEADS.new_cache(400, 6)
    parts, rows, outputs, ends = [], [], [], []
    for number, (held, count, logits) in enumerate(drawn):
        sequence = cache.new_sequence()
        sequence.grow(held)
        parts.append(Part(sequence, [100 * number + i for i in range(count)], logits))
        first = len(rows)
        rows += [(100 * number + i, held + i, sequence) for i in range(count)]
        outputs += {"last": [len(rows) - 1], "all": list(range(first, len(rows))), "none": []}[logits]
        ends.append(len(rows))
    found = lowered(parts)
    assert found.num_rows == len(rows) == found.table[layout.NUM_ROWS]
    assert listed(found, layout.TOKENS, len(rows)) == [token for token, _, _ in rows]
    assert listed(found, layout.POSITIONS, len(rows)) == [position for _, position, _ in rows]
    assert listed(found, layout.SLOTS, len(rows)) == [slot for _, slot, _ in rows]
    assert listed(found, layout.OUTPUTS, found.num_outputs) == outputs
    tiled = [row for first, count, _ in tiles(found) for row in range(first, first + count)]
    assert sorted(tiled) == list(range(len(rows)))
    for first, count, is_mixed in tiles(found):
        assert count <= TILE_ROWS and not is_mixed and not any(first < end < first + count for end in ends)
    assert listed(found, CELLS, len(rows)) == [cell(sequence, slot) for _, slot, sequence in rows]
    starts = listed(found, layout.GROUPS + layout.BLOCKS, len(rows))
    for start, (_, _, sequence) in zip(starts, rows, strict=True):
        blocks = sequence.tables[0].blocks
        assert found.table[start : start + blocks.size].tolist() == blocks.tolist()
    assert found.table[layout.WINDOWS] == found.table[layout.SINKS] == found.table[layout.CAPPED] == 0
    assert found.table[layout.GROUPS + layout.SHARED] == 0


def test_positions_may_run_ahead_of_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence that has given tokens up and closed the gap."""
    monkeypatch.setattr(Sequence, "num_slots", property(lambda sequence: sequence.num_tokens - 64))
    cache = HEADS.new_cache(400)
    sequence = cache.new_sequence()
    sequence.grow(100)
    found = lowered([Part(sequence, [5, 6, 7])])
    assert listed(found, layout.POSITIONS, 3) == [100, 101, 102]
    assert listed(found, layout.SLOTS, 3) == [36, 37, 38]
    assert listed(found, layout.TILES, 3) == [0, 3, 0]
    assert listed(found, CELLS, 3) == [cell(sequence, slot) for slot in (36, 37, 38)]


def test_spans_are_attended_apart_in_passes_of_few_rows() -> None:
    cache = HEADS.new_cache(800, 3)
    sequences = [cache.new_sequence() for _ in range(3)]
    for sequence, held in zip(sequences, (100, 255, 700), strict=True):
        sequence.grow(held)
    parts = [Part(sequence, [1]) for sequence in sequences]
    assert lowered(parts, split_rows=2).num_split_rows == 0
    found = lowered(parts, split_chunks=3)
    assert (found.table[layout.SPANS], found.table[layout.SPAN_STEP], found.table[layout.SPAN_PARTS]) == (3, 3, 1)
    assert (found.num_split_rows, found.num_tile_parts) == (3, 3)
    assert lowered(parts[:2]).num_split_rows == 2
    for sequence in sequences[:1]:
        sequence.truncate(50)
    assert lowered(parts[:1]).num_split_rows == 0


def test_a_sequence_that_begins_to_slide_sees_all_before() -> None:
    cache = HEADS.new_cache(400, 3)
    plain, sliding = cache.new_sequence(), cache.new_sequence(retention=RetentionSpec("sinks", 30, 4, starts_at=34))
    sliding.grow(30)
    found = lowered([Part(plain, [1, 2]), Part(sliding, [0] * 6)], tile_rows=4)
    assert listed(found, layout.WINDOWS, 8) == [0] * 6 + [30, 30]
    assert listed(found, layout.SINKS, 8) == [0] * 6 + [4, 4]
    assert listed(found, layout.CAPPED, 8) == [0, 1, 30, 31, 32, 33, 33, 33]
    assert tiles(found) == [(2, 4, 0), (6, 2, 0), (0, 2, 0)]


def test_spans_of_a_window_are_counted_from_its_start() -> None:
    """However long the sequence is: records of spans attended apart take turns."""
    cache = HEADS.new_cache(4000)
    sequence = cache.new_sequence(retention=RetentionSpec("sinks", 300, 4))
    for _ in range(14):
        sequence.grow(256)
        sequence.drop_unseen()
    found = lowered([Part(sequence, [1, 2])])
    assert (found.table[layout.SPANS], found.num_tile_parts) == (3, 2)
    assert (found.table[layout.SPAN_STEP], found.table[layout.SPAN_PARTS]) == (2, 2)


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(1, [1]), (2, [2]), (3, [2, 1]), (4, [2, 2]), (5, [4, 1]), (10, [6, 4]), (16, [8, 8]), (20, [10, 10]),
     (33, [10, 10, 10, 3]), (48, [12] * 4), (64, [16] * 4), (256, [16] * 16)],
)  # fmt: skip
def test_a_piece_of_a_prompt_is_divided_evenly(count: int, sizes: list[int]) -> None:
    """Into whole units of two rows, in as many tiles as two threads can share."""
    tiling = Tiling(most_rows=16, unit_rows=2, least_tiles=2)
    divided = tiling.divide(7, count)
    assert [tile.num_rows for tile in divided] == sizes
    assert [tile.row for tile in divided] == [7 + sum(sizes[:number]) for number in range(len(sizes))]


def test_what_takes_longest_is_attended_first() -> None:
    cache = HEADS.new_cache(800, 3)
    sequences = [cache.new_sequence() for _ in range(3)]
    for sequence, held in zip(sequences, (100, 300, 700), strict=True):
        sequence.grow(held)
    parts = [Part(sequence, [1] * count) for sequence, count in zip(sequences, (1, 1, 20), strict=True)]
    assert tiles(lowered(parts, unit_rows=2, least_tiles=2)) == [(12, 10, 0), (2, 10, 0), (1, 1, 0), (0, 1, 0)]


def test_tiles_can_be_dealt_out_evenly() -> None:
    three = LayerSpec("full", 9, 3, 64, 64)
    assert [least_tiles(three, num_threads) for num_threads in (1, 2, 3, 4, 6)] == [1, 2, 1, 4, 2]
    assert least_tiles(replace(three, num_heads=8, num_kv_heads=8), 2) == 1
