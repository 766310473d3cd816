"""What kernels and those who write their programs agree on: tables, instruction fields, the status word.

A forward pass is a *program*: one row of int64 an instruction. A kernel gets (chunk, thread, line, program, table,
weights, cache, work): the last three are flat uint8 arenas, and every field that names a place is a byte offset in one
of them. ``table`` holds what changes from pass to pass: its head is the names below, each number either a count or the
index where a list starts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

FIELDS = 32
"""Columns of a program."""

KERNEL, HAS_BARRIER = 0, 1
"""Columns that the interpreter reads: which kernel, and whether all chunks must be done before the next line."""

FIRST_FIELD = 2
"""The first column that belongs to the kernel itself."""


def fields(names: str) -> Any:
    """The columns of a kernel's lines by name, in order: ``fields("x out").out`` is the second that is the kernel's."""
    columns = names.split()
    named: Any = NamedTuple("Fields", [(name, int) for name in columns])  # type: ignore[misc]  # names are an argument
    return named(*range(FIRST_FIELD, FIRST_FIELD + len(columns)))


(
    NUM_ROWS,
    ROW_STEP,
    NUM_OUTPUTS,
    TOKENS,
    POSITIONS,
    SLOTS,
    WINDOWS,
    SINKS,
    CAPPED,
    OUTPUTS,
    TILES,
    NUM_TILES,
    SPANS,
    SPAN_STEP,
    SPAN_PARTS,
    SCRATCH,
    SCRATCH_STRIDE,
    TALLIES,
    TALLY_STRIDE,
    GROUPS,
) = range(20)
"""The head of the table.

``NUM_ROWS`` tokens enter the pass, and kernels that work row by row take ``ROW_STEP`` of them a chunk. Logits of
``NUM_OUTPUTS`` leave it; ``OUTPUTS``: their row numbers.

Lists by row: ``TOKENS``; ``POSITIONS``, which count all tokens of a text and turn queries and keys; ``SLOTS``, which
count those that the sequence's block tables hold and are what attention walks; where any sequence keeps less than
everything (else 0): ``WINDOWS``, how many tokens a query sees (0: all), ``SINKS``, how many first tokens besides (0:
none), and ``CAPPED``, the position that turns the query that meets these.

``TILES``: (first row, rows, is_mixed) for each attention tile; the rows of a mixed one are of a sequence each.
``SPANS``: how many spans a row's records of spans attended apart have room for, to be merged later (0: each tile merges
its own); a tile's units, spans and sinks, are then divided into ``SPAN_PARTS`` chunks of ``SPAN_STEP`` units.
``SCRATCH`` is an offset in ``work``, with ``SCRATCH_STRIDE`` bytes for each thread.
``TALLIES``: (first row, rows, first slot, where its sums by slot start for group 0, how far on for the next one) of
rows whose attention is tallied; each thread's sums are ``TALLY_STRIDE`` numbers on.
"""

CELLS, BLOCKS, SHARED = range(3)
GROUP_FIELDS = 3
"""From ``GROUPS`` on, for each layer group: lists by row of the cell to write (a block's id times 16, plus the place in
it) and of where its sequence's block ids start; and by tile the (first, end) of the spans that all rows of a mixed tile
share, block by block (0: no tile is mixed)."""

MAX_GROUPS = 8
TABLE_HEAD = GROUPS + GROUP_FIELDS * MAX_GROUPS
TILE_FIELDS = 3
TALLY_FIELDS = 5

STATUS = 0
"""Offset in ``work`` of the status, an int64 that a kernel sets where it met NaN or infinity: ``place_of`` plus 1."""
WORK_HEAD = 64


def line_and_row(status: int) -> tuple[int, int]:
    """The line of the program, and the row of the pass, that a status other than 0 names."""
    return (status - 1) & 0xFFFFFFFF, (status - 1) >> 32


COUNTERS = 16
CLAIMED, CHUNKS, DONE = 0, 1, 8
"""A line's int64 counters in a pass's control block: chunks claimed and there, and, on another cache line, done."""
ABORT = 0
"""Index of the abort flag in the control block."""
CONTROL_HEAD = 16

SPAN_TOKENS = 256
"""Tokens of a span, the unit of the softmax, aligned to absolute positions."""
SPAN_BLOCKS = 16
BLOCK_TOKENS = 16
LANES = 16

VALUE_LEVELS = (-127, -99, -78, -61, -46, -32, -19, -6, 6, 19, 32, 46, 61, 78, 99, 127)
"""What the 16 codes of an int4 value stand for, times its scale."""
_KEY_SIZES = (4, 11, 19, 26, 34, 41, 49, 56, 64, 71, 79, 87, 96, 105, 115, 127)
KEY_LEVELS = (*(-size for size in reversed(_KEY_SIZES)), *_KEY_SIZES)
"""What the 32 codes of an int4 key stand for. Both fit a head that was turned: nearly normal, the largest at an end."""

PANEL_ROWS = 16
"""Output rows of a weight panel."""
GROUP = 32
"""Inputs that share a weight scale, and an activation scale."""

GROUP_BYTES = {"f32": 2048, "f16": 1024, "bf16": 1024, "q8_0": 544, "q4_0": 288, "q4_1": 320, "q4_k": 296, "q4_z": 304}
"""Bytes of a group of 32 inputs in a panel of 16 output rows, by the form of the weights; on average in q4_k."""

SOURCE_Q4_Z = 19
"""Bytes of a group of 32 inputs in q4_z before it is packed: an f16 scale, the zero point's negative, 16 bytes of
nibbles as GGML orders them. No file has this; 4-bit integers with zero points become it."""


def quantised_row_bytes(width: int) -> int:
    """Bytes of a row of activations as int8: the codes, then per group an f32 scale, an int32 sum, their product."""
    return width + 12 * (width // GROUP)


def padded(width: int, unit: int = GROUP) -> int:
    """``width`` rounded up to a multiple of ``unit``."""
    return -(-width // unit) * unit
