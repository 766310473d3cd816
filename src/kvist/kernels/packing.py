"""From a checkpoint's rows to panels of 16 output rows (``kernels.matmul`` has the forms).

``rows[r]`` is the source row of output row r, or -1 for a row of zeros; so a permutation, a slice and the padding are
all the same copy. The destination is zero where nothing is written.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvist.kernels.jit import inline, kernel
from kvist.kernels.layout import GROUP, PANEL_ROWS
from kvist.kernels.matmul import BF16, F32, FORMS, Q4_0, Q4_1, Q8_0, panel_bytes
from kvist.kernels.simd import get_i32, get_u16, put_i32, put_u16, value

LOW, HIGH, BIAS = np.int32(0x0F0F0F0F), np.int32(-0x0F0F0F10), np.int32(-0x7F7F7F80)
SOURCE_Q8_0, SOURCE_Q4_0, SOURCE_Q4_1 = 34, 18, 20
SOURCE_BYTES = {"q8_0": SOURCE_Q8_0, "q4_0": SOURCE_Q4_0, "q4_1": SOURCE_Q4_1}
"""Bytes of a group of 32 inputs in a checkpoint."""


@inline
def pack_nibbles(source, at, target, to):
    """GGML keeps inputs i and i + 16 of a group in byte i; a panel's lane keeps 8j + b and 8j + 4 + b in byte b."""
    w0, w1 = get_i32(source, at), get_i32(source, at + 4)
    w2, w3 = get_i32(source, at + 8), get_i32(source, at + 12)
    put_i32(target, to, np.int32((w0 & LOW) | ((w1 & LOW) << 4)))
    put_i32(target, to + 64, np.int32((w2 & LOW) | ((w3 & LOW) << 4)))
    put_i32(target, to + 128, np.int32(((w0 >> 4) & LOW) | (w1 & HIGH)))
    put_i32(target, to + 192, np.int32(((w2 >> 4) & LOW) | (w3 & HIGH)))


@inline
def pack_group(source, at, target, to, lane, form):
    """One row's group of 32 inputs."""
    if value(form) == Q8_0:
        for j in range(8):
            put_i32(target, to + j * 64 + lane * 4, np.int32(get_i32(source, at + 2 + j * 4) ^ BIAS))
        put_u16(target, to + 512 + lane * 2, get_u16(source, at))
    elif value(form) == Q4_0:
        pack_nibbles(source, at + 2, target, to + lane * 4)
        put_u16(target, to + 256 + lane * 2, get_u16(source, at))
    else:
        pack_nibbles(source, at + 4, target, to + lane * 4)
        put_u16(target, to + 256 + lane * 2, get_u16(source, at))
        put_u16(target, to + 288 + lane * 2, get_u16(source, at + 2))


@inline
def pack_floats(source, at, width, target, to, lane, form):
    """One row of floats."""
    for k in range(width):
        if value(form) == F32:
            put_i32(target, to + (k * PANEL_ROWS + lane) * 4, get_i32(source, at + k * 4))
        elif value(form) == BF16:
            put_u16(target, to + (k // 2 * PANEL_ROWS + lane) * 4 + k % 2 * 2, get_u16(source, at + k * 2))
        else:
            put_u16(target, to + (k * PANEL_ROWS + lane) * 2, get_u16(source, at + k * 2))


@inline
def pack_row(source, at, width, target, to, lane, form):
    """One row, from byte ``at`` of the source to lane ``lane`` of the panel at ``to``."""
    if value(form) < Q8_0:
        pack_floats(source, at, width, target, to, lane, form)
    else:
        source_bytes = SOURCE_Q8_0 if value(form) == Q8_0 else SOURCE_Q4_1 if value(form) == Q4_1 else SOURCE_Q4_0
        for g in range(width // GROUP):
            group_bytes = panel_bytes(GROUP, form)
            pack_group(source, at + g * source_bytes, target, to + g * group_bytes, lane, form)


@kernel()
def pack(source, row_bytes, rows, width, target, offset, first_panel, end_panel, form):
    """Write panels ``first_panel`` to ``end_panel`` - 1 of a matrix at ``offset``; ``width`` is the unpadded one."""
    size = panel_bytes((width + GROUP - 1) // GROUP * GROUP, form)
    for panel in range(first_panel, end_panel):
        for lane in range(PANEL_ROWS):
            row = rows[panel * PANEL_ROWS + lane]
            if row >= 0:
                pack_row(source, row * row_bytes, width, target, offset + panel * size, lane, form)


def check_pack(source: Any, row_bytes: int, rows: Any, target: Any, offset: int, num_bytes: int, form: str) -> None:
    """Assert that a call of ``pack`` stays inside its arrays."""
    assert source.dtype == target.dtype == np.uint8 and form in FORMS, (source.dtype, target.dtype, form)
    assert rows.size % PANEL_ROWS == 0 and rows.dtype == np.int64, (rows.size, rows.dtype)
    assert (int(rows.max(initial=-1)) + 1) * row_bytes <= source.size, (
        int(rows.max(initial=-1)),
        row_bytes,
        source.size,
    )
    assert 0 <= offset and offset + num_bytes <= target.size, (offset, num_bytes, target.size)
