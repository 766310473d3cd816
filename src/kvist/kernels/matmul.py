"""Matrix times activations, for weights in panels of 16 output rows.

One output element is one fixed sequence of operations over the inputs, whatever the number of rows, the tile or the
thread: the tile's row count is a compile-time constant of the same code.

Forms of a panel, inputs padded with zeros to a multiple of 32:

    f32         [input][16]                           activations f32; even and odd inputs summed apart, then added
    f16         [input][16]                           as f32
    bf16        [input / 2][16][2]                    as f32
    q8_0        [group]([8][16][4] u8 = q + 128, [16] f16 scale)              activations int8
    q4_0        [group]([4][16][4] nibble pairs, [16] f16 scale)              activations int8
    q4_1        [group]([4][16][4] nibble pairs, [16] f16 scale, [16] f16 minimum)

A quantised group's dot product is exact in int32, its zero point included; then the scale's fma, then the minimum's.
Byte i of a nibble pair's lane holds inputs 8j + i (low four bits) and 8j + 4 + i (high).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvist.kernels import target
from kvist.kernels.jit import SIGNATURE, inline, kernel
from kvist.kernels.layout import GROUP, LANES, NUM_OUTPUTS, NUM_ROWS, fields
from kvist.kernels.simd import (
    add,
    bf16_even,
    bf16_odd,
    dot4,
    dot4_nibbles,
    fma,
    half_to_f32,
    high_nibbles,
    load_f32,
    load_i32,
    load_rows_f32,
    load_u16,
    low_nibbles,
    mul,
    mul_i32,
    prefetch,
    splat_i32,
    splat_rows_f32,
    splat_rows_i32,
    static,
    store_rows,
    to_f32,
    value,
    zero_f32,
)

F32, F16, BF16, Q8_0, Q4_0, Q4_1 = range(6)
FORMS = {"f32": F32, "f16": F16, "bf16": BF16, "q8_0": Q8_0, "q4_0": Q4_0, "q4_1": Q4_1}
F32_BYTES, HALF_BYTES, Q8_0_BYTES, Q4_0_BYTES, Q4_1_BYTES = 2048, 1024, 544, 288, 320
GROUP_BYTES = {
    "f32": F32_BYTES,
    "f16": HALF_BYTES,
    "bf16": HALF_BYTES,
    "q8_0": Q8_0_BYTES,
    "q4_0": Q4_0_BYTES,
    "q4_1": Q4_1_BYTES,
}
"""Bytes that one group of 32 inputs takes in a panel of 16 output rows."""
QUANTISED = ("q8_0", "q4_0", "q4_1")

MM = fields("w panels width x x_stride out out_stride bias adds is_last chunk_panels chunk_rows")
AHEAD = 2048
"""How many bytes ahead of the weights in use the next ones are asked for."""


@inline
def dots_floats(weights, panel, work, x, stride, width, rows, form):
    """[rows, 16] dot products; even and odd inputs apart, added at the end."""
    even, odd = zero_f32(rows, LANES), zero_f32(rows, LANES)
    for k in range(0, width, 2):
        if value(form) == BF16:
            pair = load_i32(weights, panel + k * 32, LANES)
            w_even, w_odd = bf16_even(pair), bf16_odd(pair)
        elif value(form) == F16:
            w_even = half_to_f32(load_u16(weights, panel + k * 32, LANES))
            w_odd = half_to_f32(load_u16(weights, panel + k * 32 + 32, LANES))
        else:
            w_even, w_odd = load_f32(weights, panel + k * 64, LANES), load_f32(weights, panel + k * 64 + 64, LANES)
        even = fma(splat_rows_f32(work, x + k * 4, stride, rows, LANES), w_even, even)
        odd = fma(splat_rows_f32(work, x + k * 4 + 4, stride, rows, LANES), w_odd, odd)
    return add(even, odd)


@inline
def dots_q8(weights, panel, work, x, stride, width, rows, form):
    """[rows, 16] dot products with 8-bit weights."""
    acc = zero_f32(rows, LANES)
    scales = x + width
    count = width // GROUP
    for g in range(count):
        at = panel + g * Q8_0_BYTES
        prefetch(weights, at + AHEAD)
        total = mul_i32(
            splat_rows_i32(work, scales + (count + g) * 4, stride, rows, LANES), splat_i32(np.int32(-128), LANES)
        )
        for j in range(8):
            w = load_i32(weights, at + j * 64, LANES)
            total = dot4(total, w, splat_rows_i32(work, x + g * GROUP + j * 4, stride, rows, LANES))
        scale = half_to_f32(load_u16(weights, at + 512, LANES))
        acc = fma(to_f32(total), mul(splat_rows_f32(work, scales + g * 4, stride, rows, LANES), scale), acc)
    return acc


@inline
def dots_q4(weights, panel, work, x, stride, width, rows, form):
    """[rows, 16] dot products with 4-bit weights."""
    acc = zero_f32(rows, LANES)
    scales = x + width
    count = width // GROUP
    group_bytes = Q4_1_BYTES if value(form) == Q4_1 else Q4_0_BYTES
    zero_point = np.int32(0 if value(form) == Q4_1 else -8)
    for g in range(count):
        at = panel + g * group_bytes
        total = mul_i32(
            splat_rows_i32(work, scales + (count + g) * 4, stride, rows, LANES), splat_i32(zero_point, LANES)
        )
        for j in range(4):
            w = load_i32(weights, at + j * 64, LANES)
            xs = x + g * GROUP + j * 8
            total = dot4_nibbles(total, low_nibbles(w), splat_rows_i32(work, xs, stride, rows, LANES))
            total = dot4_nibbles(total, high_nibbles(w), splat_rows_i32(work, xs + 4, stride, rows, LANES))
        scale = half_to_f32(load_u16(weights, at + 256, LANES))
        acc = fma(to_f32(total), mul(splat_rows_f32(work, scales + g * 4, stride, rows, LANES), scale), acc)
        if value(form) == Q4_1:
            minimum = half_to_f32(load_u16(weights, at + 288, LANES))
            acc = fma(minimum, splat_rows_f32(work, scales + (2 * count + g) * 4, stride, rows, LANES), acc)
    return acc


@inline
def tile(weights, panel, work, x, x_stride, width, out, out_stride, bias, adds, rows, form, dots):
    """``rows`` activations times one panel, to [rows, 16] of the output; ``dots`` is the form's own inner sequence."""
    acc = dots(weights, panel, work, x, x_stride, width, rows, form)
    if bias >= 0:
        acc = add(acc, load_f32(weights, bias, LANES))
    if adds:
        acc = add(acc, load_rows_f32(work, out, out_stride, rows, LANES))
    store_rows(work, out, out_stride, acc)


@inline
def panel_bytes(width, form):
    """Bytes of a panel of ``width`` inputs, a multiple of 32."""
    groups = width // GROUP
    if value(form) == F32:
        return groups * F32_BYTES
    if value(form) <= BF16:
        return groups * HALF_BYTES
    if value(form) == Q8_0:
        return groups * Q8_0_BYTES
    return groups * (Q4_1_BYTES if value(form) == Q4_1 else Q4_0_BYTES)


@inline
def matmul(chunk, line, program, table, weights, work, form, tile_rows, dots):
    """A chunk is some panels times some rows."""
    panels, chunk_panels = program[line, MM.panels], program[line, MM.chunk_panels]
    across = (panels + chunk_panels - 1) // chunk_panels
    first_panel, first_row = chunk % across * chunk_panels, chunk // across * program[line, MM.chunk_rows]
    num_rows = table[NUM_OUTPUTS] if program[line, MM.is_last] else table[NUM_ROWS]
    end_row = min(num_rows, first_row + program[line, MM.chunk_rows])
    width, bias, adds = program[line, MM.width], program[line, MM.bias], program[line, MM.adds]
    x_stride, out_stride = program[line, MM.x_stride], program[line, MM.out_stride]
    size = panel_bytes(width, form)
    for p in range(first_panel, min(panels, first_panel + chunk_panels)):
        panel = program[line, MM.w] + p * size
        panel_bias = bias + p * 64 if bias >= 0 else bias
        row = first_row
        x, out = program[line, MM.x] + row * x_stride, program[line, MM.out] + row * out_stride + p * 64
        while row + value(tile_rows) <= end_row:
            tile(weights, panel, work, x, x_stride, width, out, out_stride, panel_bias, adds, tile_rows, form, dots)
            row, x, out = row + value(tile_rows), x + value(tile_rows) * x_stride, out + value(tile_rows) * out_stride
        while row + 2 <= end_row:
            tile(weights, panel, work, x, x_stride, width, out, out_stride, panel_bias, adds, static(2), form, dots)
            row, x, out = row + 2, x + 2 * x_stride, out + 2 * out_stride
        if row < end_row:
            tile(weights, panel, work, x, x_stride, width, out, out_stride, panel_bias, adds, static(1), form, dots)


def matmul_kernel(form: int) -> Any:
    """The kernel that multiplies with weights of one form; only that form's inner sequence is compiled."""
    rows = target.current().tile_rows
    if form < Q8_0:
        return _floats_kernel(form, rows)
    return _q8_kernel(form, rows) if form == Q8_0 else _q4_kernel(form, rows)


def _floats_kernel(form: int, rows: int) -> Any:
    @kernel(SIGNATURE)
    def run_floats(chunk, thread, line, program, table, weights, cache, work):
        matmul(chunk, line, program, table, weights, work, static(form), static(rows), dots_floats)

    return run_floats


def _q8_kernel(form: int, rows: int) -> Any:
    @kernel(SIGNATURE)
    def run_q8(chunk, thread, line, program, table, weights, cache, work):
        matmul(chunk, line, program, table, weights, work, static(form), static(rows), dots_q8)

    return run_q8


def _q4_kernel(form: int, rows: int) -> Any:
    @kernel(SIGNATURE)
    def run_q4(chunk, thread, line, program, table, weights, cache, work):
        matmul(chunk, line, program, table, weights, work, static(form), static(rows), dots_q4)

    return run_q4
