"""A gated MLP's first half in one: rows times gate and up, the activation, and the int8 form of what comes out.

For passes of many rows. A chunk's products stay in its thread's scratch; apart they would go to other threads through
memory. The operations on each number are those of ``matmul`` and ``elementwise.activation``.
"""

from __future__ import annotations

from typing import Any

from kvist.kernels.elementwise import activate, place_of, quantise_groups
from kvist.kernels.jit import SIGNATURE, called, inline, kernel
from kvist.kernels.layout import GROUP, LANES, NUM_ROWS, SCRATCH, SCRATCH_STRIDE, fields
from kvist.kernels.matmul import (
    PANEL_BYTES,
    WIDE_BYTES,
    PairWays,
    Task,
    Ways,
    inner_of,
    multiply_two,
    multiply_two_singly,
    num_tile_rows,
    panel_bytes,
)
from kvist.kernels.matmul import scratch_bytes as matmul_scratch_bytes
from kvist.kernels.simd import load_f32, mul, static, store

GATED = fields("w panels width x x_stride bias out out_stride stride_groups")
"""``panels``: of gate, and as many of up behind them; a chunk is two of each, a group of columns that share a scale.
``stride_groups``: how many groups on the thread's next chunk is likely to be."""

PAIR_BYTES = 2 * PANEL_BYTES
PRODUCT_BYTES = 2 * PAIR_BYTES
"""Bytes of a row's products in scratch: 32 of gate, 32 of up."""


@called
def activate_products(work, products, num_rows, group, width, out, out_stride, place, kind):
    """Write column group ``group`` of act(gate) times up of all rows in the int8 form."""
    for row in range(num_rows):
        at = products + row * PRODUCT_BYTES
        for i in range(0, GROUP, LANES):
            x = activate(load_f32(work, at + i * 4, LANES), kind)
            store(work, at + i * 4, mul(x, load_f32(work, at + PAIR_BYTES + i * 4, LANES)))
        place_of_row = place + place_of(0, row)
        quantise_groups(work, at - group * PAIR_BYTES, group, group + 1, width, out + row * out_stride, place_of_row)


@inline
def gated(chunk, thread, line, program, table, weights, work, ways, pairs, multiply, kind):
    """A chunk is a group of columns, of all rows."""
    width, half = program[line, GATED.width], program[line, GATED.panels]
    num_rows, size = table[NUM_ROWS], panel_bytes(width, ways.form)
    scratch = table[SCRATCH] + thread * table[SCRATCH_STRIDE]
    products = scratch + 2 * (width // GROUP) * WIDE_BYTES
    first, end = program[line, GATED.w], program[line, GATED.w] + 2 * half * size
    for part in range(2):
        panel = 2 * chunk + part * half
        following = panel + half if part == 0 else 2 * (chunk + program[line, GATED.stride_groups])
        bias = program[line, GATED.bias]
        if bias >= 0:
            bias += panel * PANEL_BYTES
        x, x_stride, out = program[line, GATED.x], program[line, GATED.x_stride], products + part * PAIR_BYTES
        task = Task(0, num_rows, width, x, x_stride, out, PRODUCT_BYTES, bias, 0)
        ahead = min(first + following * size, end), min(first + (following + 2) * size, end)
        multiply(weights, first + panel * size, size, work, scratch, task, ahead, ways, pairs)
    out, stride = program[line, GATED.out], program[line, GATED.out_stride]
    activate_products(work, products, num_rows, chunk, half * LANES, out, stride, line, kind)


def gated_kernel(form: int, kind: int) -> Any:
    """The kernel for weights of one form and an activation."""
    rows, pair_rows, fewer, least = num_tile_rows(form)
    dots, pair, source = inner_of(form)
    multiply = multiply_two if pair_rows else multiply_two_singly

    @kernel(SIGNATURE)
    def run_gated(chunk, thread, line, program, table, weights, cache, work):
        ways = Ways(static(form), static(rows), dots)
        pairs = PairWays(static(form), static(pair_rows), static(fewer), static(least), pair, source)
        gated(chunk, thread, line, program, table, weights, work, ways, pairs, multiply, static(kind))

    return run_gated


def scratch_bytes(width: int, num_rows: int) -> int:
    """Scratch that one thread needs for matrices of ``width`` inputs and passes of ``num_rows`` rows."""
    return matmul_scratch_bytes(width) + num_rows * PRODUCT_BYTES
