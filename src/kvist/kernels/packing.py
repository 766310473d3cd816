"""From a checkpoint's rows to panels of 16 output rows (``kernels.matmul`` has the forms).

``rows[r]`` is the source row of output row r, or -1 for a row of zeros; so a permutation, a slice and the padding are
all the same copy. The destination is zero where nothing is written.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvist.kernels.jit import inline, kernel
from kvist.kernels.layout import GROUP, LANES, PANEL_ROWS, SOURCE_Q4_Z
from kvist.kernels.matmul import (
    BF16,
    F32,
    FORMS,
    K_BYTES,
    K_GROUP_BYTES,
    K_GROUPS,
    K_HEAD,
    Q4_0,
    Q4_1,
    Q4_K,
    Q4_Z,
    Q8_0,
    Q8_0_BYTES,
    panel_bytes,
)
from kvist.kernels.simd import (
    absolute,
    first_lane,
    fma,
    get_i8,
    get_i32,
    get_u16,
    half_to_f32,
    load_f32,
    load_u16,
    max_lanes,
    maximum,
    minimum,
    mul,
    narrow_i8,
    put_f32,
    put_i8,
    put_i32,
    put_u16,
    rint,
    splat_f32,
    store,
    sum_lanes,
    to_i32,
    value,
    zero_f32,
)

F = np.float32
LOW, HIGH, BIAS = np.int32(0x0F0F0F0F), np.int32(-0x0F0F0F10), np.int32(-0x7F7F7F80)
SOURCE_Q8_0, SOURCE_Q4_0, SOURCE_Q4_1 = 34, 18, 20
"""Bytes of a group of 32 inputs in a checkpoint."""
SOURCE_Q4_K = 144
"""Bytes of a block of 256."""
MINUS = np.uint16(0x8000)
"""An f16's sign."""


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
    elif value(form) == Q4_Z:
        pack_nibbles(source, at + 3, target, to + lane * 4)
        put_u16(target, to + 256 + lane * 2, get_u16(source, at))
        put_i8(target, to + 288 + lane, get_i8(source, at + 2))
    else:
        pack_nibbles(source, at + 4, target, to + lane * 4)
        put_u16(target, to + 256 + lane * 2, get_u16(source, at))
        put_u16(target, to + 288 + lane * 2, get_u16(source, at + 2))


@inline
def pack_q4_k(source, at, target, to, lane):
    """One row's block of 256 inputs. GGML keeps the pairs of 6-bit numbers in 12 bytes, and of two groups side by side
    one in the low nibbles and one in the high ones."""
    put_u16(target, to + lane * 2, get_u16(source, at))
    put_u16(target, to + 32 + lane * 2, np.uint16(get_u16(source, at + 2) ^ MINUS))
    for i in range(K_GROUPS):
        group, codes = to + K_HEAD + i * K_GROUP_BYTES, at + 16 + i // 2 * GROUP
        shift = i % 2 * 4
        for j in range(4):
            low, high = get_i32(source, codes + j * 8) >> shift, get_i32(source, codes + j * 8 + 4) >> shift
            put_i32(target, group + j * 64 + lane * 4, np.int32((low & LOW) | ((high & LOW) << 4)))
        if i < 4:
            scale, minimum_ = get_i8(source, at + 4 + i) & 63, get_i8(source, at + 8 + i) & 63
        else:
            both = get_i8(source, at + 8 + i)
            scale = both & 15 | (get_i8(source, at + i) >> 6 & 3) << 4
            minimum_ = both >> 4 & 15 | (get_i8(source, at + 4 + i) >> 6 & 3) << 4
        put_i8(target, group + 256 + lane, np.int8(scale))
        put_i8(target, group + 272 + lane, np.int8(minimum_))


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
    elif value(form) == Q4_K:
        for block in range(width // GROUP // K_GROUPS):
            pack_q4_k(source, at + block * SOURCE_Q4_K, target, to + block * K_BYTES, lane)
    else:
        source_bytes = SOURCE_Q8_0
        if value(form) != Q8_0:
            source_bytes = SOURCE_Q4_1 if value(form) == Q4_1 else SOURCE_Q4_Z if value(form) == Q4_Z else SOURCE_Q4_0
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


@inline
def round_to_half(memory, at, x):
    """Write ``x``, a number from 0 to 65504, as the nearest f16, half to even; returns that as f32.

    Below the smallest normal f16 its steps are 2^-24, which are those of an f32 next to 1/2.
    """
    is_small = x < F(2**-14)
    put_f32(memory, at, x + F(0.5) if is_small else x)
    bits = get_i32(memory, at)
    half = bits - np.int32(0x3F000000) if is_small else (bits + 0xFFF + ((bits >> 13) & 1) >> 13) - (112 << 10)
    put_i32(memory, at, np.int32(0))
    put_u16(memory, at, np.uint16(half))
    return first_lane(half_to_f32(load_u16(memory, at, 1)))


@inline
def quantise_group(memory, at, target, to, lane):
    """Write 32 numbers as 8 bits with an f16 scale; overwrites them. Returns whether the form can hold them.

    The codes are rounded with the scale as it is kept: its own rounding then moves no number by more than half a step.
    """
    low, high = load_f32(memory, at, LANES), load_f32(memory, at + 64, LANES)
    largest = max_lanes(maximum(absolute(low), absolute(high)))
    check = sum_lanes(fma(low, splat_f32(F(0), LANES), fma(high, splat_f32(F(0), LANES), zero_f32(1, LANES))))
    if check != F(0) or largest > F(65504 * 127):
        return False
    scale = round_to_half(memory, at, largest / F(127))
    inverse, most = splat_f32(F(1) / scale if scale > F(0) else F(0), LANES), splat_f32(F(127), LANES)
    least = splat_f32(F(-127), LANES)
    put_u16(target, to + 512 + lane * 2, get_u16(memory, at))
    store(memory, at, narrow_i8(to_i32(minimum(maximum(rint(mul(low, inverse)), least), most))))
    store(memory, at + 16, narrow_i8(to_i32(minimum(maximum(rint(mul(high, inverse)), least), most))))
    for j in range(8):
        put_i32(target, to + j * 64 + lane * 4, np.int32(get_i32(memory, at + j * 4) ^ BIAS))
    return True


@kernel()
def pack_numbers(numbers, num_rows, width, target, offset):
    """Write rows of f32 [num_rows, width], a multiple of 32 wide, as panels of 8 bits; ``numbers`` are overwritten.

    Returns how many groups hold NaN, infinity or numbers too large for an f16 scale; these aren't written.
    """
    count, failed = width // GROUP, 0
    for row in range(num_rows):
        panel = offset + row // PANEL_ROWS * count * Q8_0_BYTES
        for g in range(count):
            at = (row * width + g * GROUP) * 4
            if not quantise_group(numbers, at, target, panel + g * Q8_0_BYTES, row % PANEL_ROWS):
                failed += 1
    return failed


def check_pack_numbers(numbers: Any, num_rows: int, width: int, target: Any, offset: int) -> None:
    """Assert that a call of ``pack_numbers`` stays inside its arrays."""
    assert numbers.dtype == target.dtype == np.uint8 and numbers.ndim == 1, (numbers.dtype, target.dtype, numbers.ndim)
    assert width % GROUP == 0 and num_rows * width * 4 <= numbers.size, (num_rows, width, numbers.size)
    num_bytes = -(-num_rows // PANEL_ROWS) * (width // GROUP) * Q8_0_BYTES
    assert 0 <= offset and offset + num_bytes <= target.size, (offset, num_bytes, target.size)


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
