"""Matrix times activations, for weights in panels of 16 output rows.

One output element is one fixed sequence of operations over the inputs, whatever the number of rows, the tile or the
thread. A tile is some rows times one panel, or, where there are many rows and registers, times two: what is loaded of
the activations then serves both. 4-bit weights are widened to bytes first, once for all tiles of a chunk.

Forms of a panel, inputs padded with zeros to a multiple of 32:

    f32         [input][16]                           activations f32; even and odd inputs summed apart, then added
    f16         [input][16]                           as f32
    bf16        [input / 2][16][2]                    as f32
    q8_0        [group]([8][16][4] u8 = q + 128, [16] f16 scale)              activations int8
    q4_0        [group]([4][16][4] nibble pairs, [16] f16 scale)              activations int8
    q4_1        [group]([4][16][4] nibble pairs, [16] f16 scale, [16] f16 minimum)
    q4_z        [group]([4][16][4] nibble pairs, [16] f16 scale, [16] i8 -zero)
    q4_k        [256 inputs]([16] f16 d, [16] f16 -dmin, [8]([4][16][4] nibble pairs, [16] i8 s, [16] i8 m))

A scale is f16, or d x s; a minimum f16, or scale x -zero, or -dmin x m: each product is exact in f32.

A quantised group's dot product is exact in int32, its zero point included; then the scale's fma, then the minimum's.
Byte i of a nibble pair's lane holds inputs 8j + i (low four bits) and 8j + 4 + i (high).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvist.kernels import target
from kvist.kernels.jit import SIGNATURE, called, inline, kernel
from kvist.kernels.layout import GROUP, GROUP_BYTES, LANES, NUM_OUTPUTS, NUM_ROWS, SCRATCH, SCRATCH_STRIDE, fields
from kvist.kernels.simd import (
    add,
    add_i32,
    begin_nibbles,
    bf16_even,
    bf16_odd,
    dot4,
    dot4_nibbles,
    dot4_offset,
    end_nibbles,
    fma,
    half_to_f32,
    high_nibbles,
    load_f32,
    load_i8,
    load_i32,
    load_rows_f32,
    load_u16,
    low_nibbles,
    mul,
    mul_i32,
    offset_sums,
    prefetch,
    settle,
    splat_i32,
    splat_rows_f32,
    splat_rows_i32,
    static,
    store,
    store_rows,
    to_f32,
    value,
    zero_f32,
    zero_i32,
)

F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_Z, Q4_K = range(8)
FORMS = {"f32": F32, "f16": F16, "bf16": BF16, "q8_0": Q8_0, "q4_0": Q4_0, "q4_1": Q4_1, "q4_z": Q4_Z, "q4_k": Q4_K}
F32_BYTES, HALF_BYTES = GROUP_BYTES["f32"], GROUP_BYTES["f16"]
Q8_0_BYTES, Q4_0_BYTES, Q4_1_BYTES, Q4_Z_BYTES = (GROUP_BYTES[form] for form in ("q8_0", "q4_0", "q4_1", "q4_z"))
K_GROUPS, K_HEAD, K_GROUP_BYTES = 8, 64, 288
K_BYTES = K_GROUPS * GROUP_BYTES["q4_k"]
"""A q4_k block of 256 inputs: its groups, the bytes before them, those of a group, and of all."""
assert K_BYTES == K_HEAD + K_GROUPS * K_GROUP_BYTES, K_BYTES
QUANTISED = ("q8_0", "q4_0", "q4_1", "q4_z", "q4_k")

MM = fields("w panels width x x_stride out out_stride bias adds is_last chunk_panels chunk_rows stride_panels")
PANEL_BYTES = LANES * 4
"""Bytes of a panel's outputs, and of its biases."""
LINE_BYTES = 64
LINES_AHEAD = 4
"""Cache lines of the next weights that are asked for at each group: three tiles ask for all of a pair of panels."""
WIDE_BYTES = 640
"""Bytes that a group of a 4-bit panel takes where it was widened."""
Q8_0_LINES, Q4_LINES = -(-Q8_0_BYTES // LINE_BYTES), -(-Q4_1_BYTES // LINE_BYTES)
"""Cache lines of a group."""
AHEAD = 2048
"""How many bytes ahead of the weights in use a line of the next ones is asked for where there are few rows."""
BYTES_AHEAD = target.current().bytes_ahead
"""The same where all lines are asked for."""
SUMS = target.current().sums
"""How many vectors of sums there are registers for."""
HAS_TWO_SUMS = target.current().has_two_sums
"""Whether the low and the high four bits of a group are summed apart and then added; exact, so either way the same."""


@inline
def load_pair(memory, panel, k, form):
    """The weights of inputs ``k`` and ``k`` + 1 of a panel, as f32."""
    if value(form) == BF16:
        pair = load_i32(memory, panel + k * 32, LANES)
        return bf16_even(pair), bf16_odd(pair)
    if value(form) == F16:
        even, odd = load_u16(memory, panel + k * 32, LANES), load_u16(memory, panel + k * 32 + 32, LANES)
        return half_to_f32(even), half_to_f32(odd)
    return load_f32(memory, panel + k * 64, LANES), load_f32(memory, panel + k * 64 + 64, LANES)


@inline
def dots_floats(weights, panel, ahead, work, x, stride, width, rows, form):
    """[rows, 16] dot products; even and odd inputs apart, added at the end.

    Where there aren't registers for both, the panel is gone through twice.
    """
    even, odd = zero_f32(rows, LANES), zero_f32(rows, LANES)
    if 2 * value(rows) <= SUMS:
        for k in range(0, width, 2):
            w_even, w_odd = load_pair(weights, panel, k, form)
            even = fma(splat_rows_f32(work, x + k * 4, stride, rows, LANES), w_even, even)
            odd = fma(splat_rows_f32(work, x + k * 4 + 4, stride, rows, LANES), w_odd, odd)
        return add(even, odd)
    for k in range(0, width, 2):
        even = fma(splat_rows_f32(work, x + k * 4, stride, rows, LANES), load_pair(weights, panel, k, form)[0], even)
    even = settle(even)
    for k in range(0, width, 2):
        odd = fma(splat_rows_f32(work, x + k * 4 + 4, stride, rows, LANES), load_pair(weights, panel, k, form)[1], odd)
    return add(even, odd)


@inline
def ask_ahead(weights, ahead, lines):
    """Ask for the next ``lines`` cache lines of what this thread multiplies with next; returns what is left of it.

    At the end it asks for the last ones again: a branch would cost more.
    """
    at, end = ahead
    for line in range(lines):
        prefetch(weights, at + line * LINE_BYTES)
    return min(at + lines * LINE_BYTES, end), end


@inline
def pair_floats(weights, memory, a, b, work, x, stride, width, ahead, rows, form):
    """The same with each of two panels; returns also how far the next ones were asked for."""
    even_a, odd_a = zero_f32(rows, LANES), zero_f32(rows, LANES)
    even_b, odd_b = zero_f32(rows, LANES), zero_f32(rows, LANES)
    for k in range(0, width, 2):
        a_even, a_odd = load_pair(memory, a, k, form)
        b_even, b_odd = load_pair(memory, b, k, form)
        x_even = splat_rows_f32(work, x + k * 4, stride, rows, LANES)
        even_a, even_b = fma(x_even, a_even, even_a), fma(x_even, b_even, even_b)
        x_odd = splat_rows_f32(work, x + k * 4 + 4, stride, rows, LANES)
        odd_a, odd_b = fma(x_odd, a_odd, odd_a), fma(x_odd, b_odd, odd_b)
        ahead = ask_ahead(weights, ahead, 1)
    return add(even_a, odd_a), add(even_b, odd_b), ahead


@inline
def start_of(work, sums, stride, rows, zero_point):
    """What a group's integer dot products start from: the zero point times the sum of the activations."""
    return mul_i32(splat_rows_i32(work, sums, stride, rows, LANES), splat_i32(np.int32(zero_point), LANES))


@inline
def ask_for_next(weights, at, ahead, rows, form):
    """Ask for what is multiplied next, while the group at ``at`` is: the same group of the next panel in a large tile.

    There is work enough meanwhile. A panel's further tiles, with an ``ahead`` of 0, ask for nothing again.
    """
    distance = ahead if value(rows) > 2 else BYTES_AHEAD
    if distance > 0:
        for line in range(Q8_0_LINES if value(form) == Q8_0 else Q4_LINES):
            prefetch(weights, at + distance + line * LINE_BYTES)
    elif value(form) == Q8_0 and value(rows) <= 2:
        prefetch(weights, at + AHEAD)


@inline
def dots_q8(weights, panel, ahead, work, x, stride, width, rows, form):
    """[rows, 16] dot products with 8-bit weights."""
    acc = zero_f32(rows, LANES)
    scales = x + width
    count = width // GROUP
    for g in range(count):
        at = panel + g * Q8_0_BYTES
        ask_for_next(weights, at, ahead, rows, form)
        total = offset_sums(splat_rows_i32(work, scales + (count + g) * 4, stride, rows, LANES))
        for j in range(8):
            w = load_i32(weights, at + j * 64, LANES)
            total = dot4_offset(total, w, splat_rows_i32(work, x + g * GROUP + j * 4, stride, rows, LANES))
        scale = half_to_f32(load_u16(weights, at + 512, LANES))
        acc = fma(to_f32(total), mul(splat_rows_f32(work, scales + g * 4, stride, rows, LANES), scale), acc)
    return acc


@inline
def q4_group(panel, g, form):
    """Where group ``g`` of a 4-bit panel begins."""
    if value(form) == Q4_K:
        return panel + g // K_GROUPS * K_BYTES + K_HEAD + g % K_GROUPS * K_GROUP_BYTES
    return panel + g * (Q4_1_BYTES if value(form) == Q4_1 else Q4_Z_BYTES if value(form) == Q4_Z else Q4_0_BYTES)


@inline
def q4_scale(weights, panel, g, form):
    """The scales of a group's 16 rows."""
    at = q4_group(panel, g, form)
    if value(form) == Q4_K:
        block = half_to_f32(load_u16(weights, panel + g // K_GROUPS * K_BYTES, LANES))
        return mul(block, to_f32(load_i8(weights, at + 256, LANES)))
    return half_to_f32(load_u16(weights, at + 256, LANES))


@inline
def q4_minimum(weights, panel, g, form):
    """The minima of a group's 16 rows, in the forms that have them (``has_minimum``)."""
    at = q4_group(panel, g, form)
    if value(form) == Q4_K:
        block = half_to_f32(load_u16(weights, panel + g // K_GROUPS * K_BYTES + 32, LANES))
        return mul(block, to_f32(load_i8(weights, at + 272, LANES)))
    if value(form) == Q4_Z:
        return mul(half_to_f32(load_u16(weights, at + 256, LANES)), to_f32(load_i8(weights, at + 288, LANES)))
    return half_to_f32(load_u16(weights, at + 288, LANES))


@inline
def zero_point(form):
    """What the code 0 of a 4-bit form stands for, times its scale and without its minimum."""
    return np.int32(-8 if value(form) == Q4_0 else 0)


@inline
def dots_q4(weights, panel, ahead, work, x, stride, width, rows, form):
    """[rows, 16] dot products with 4-bit weights."""
    acc = zero_f32(rows, LANES)
    scales = x + width
    count = width // GROUP
    for g in range(count):
        at = q4_group(panel, g, form)
        ask_for_next(weights, at, ahead, rows, form)
        start = start_of(work, scales + (count + g) * 4, stride, rows, zero_point(form))
        total, high = begin_nibbles(start), zero_i32(rows, LANES)
        for j in range(4):
            w = load_i32(weights, at + j * 64, LANES)
            xs = x + g * GROUP + j * 8
            total = dot4_nibbles(total, low_nibbles(w), splat_rows_i32(work, xs, stride, rows, LANES))
            xs_high = splat_rows_i32(work, xs + 4, stride, rows, LANES)
            if HAS_TWO_SUMS:
                high = dot4_nibbles(high, high_nibbles(w), xs_high)
            else:
                total = dot4_nibbles(total, high_nibbles(w), xs_high)
            total = settle(total)
        total = add_i32(end_nibbles(start, total), high)
        scale = q4_scale(weights, panel, g, form)
        acc = fma(to_f32(total), mul(splat_rows_f32(work, scales + g * 4, stride, rows, LANES), scale), acc)
        if value(form) != Q4_0:
            minimum = q4_minimum(weights, panel, g, form)
            acc = fma(minimum, splat_rows_f32(work, scales + (2 * count + g) * 4, stride, rows, LANES), acc)
    return acc


@inline
def pair_dots(memory, a, b, work, x, stride, start, rows):
    """A group's integer dot products with the bytes of two panels, from ``start``."""
    total_a, total_b = start, start
    for j in range(8):
        bytes_of_x = splat_rows_i32(work, x + j * 4, stride, rows, LANES)
        total_a = dot4(total_a, load_i32(memory, a + j * 64, LANES), bytes_of_x)
        total_b = dot4(total_b, load_i32(memory, b + j * 64, LANES), bytes_of_x)
    return total_a, total_b


@inline
def pair_q8(weights, memory, a, b, work, x, stride, width, ahead, rows, form):
    """``dots_q8`` with each of two panels."""
    acc_a, acc_b = zero_f32(rows, LANES), zero_f32(rows, LANES)
    scales = x + width
    count = width // GROUP
    for g in range(count):
        start = start_of(work, scales + (count + g) * 4, stride, rows, -128)
        total_a, total_b = pair_dots(memory, a, b, work, x + g * GROUP, stride, start, rows)
        scale = splat_rows_f32(work, scales + g * 4, stride, rows, LANES)
        acc_a = fma(to_f32(total_a), mul(scale, half_to_f32(load_u16(memory, a + 512, LANES))), acc_a)
        acc_b = fma(to_f32(total_b), mul(scale, half_to_f32(load_u16(memory, b + 512, LANES))), acc_b)
        a, b, ahead = a + Q8_0_BYTES, b + Q8_0_BYTES, ask_ahead(weights, ahead, LINES_AHEAD)
    return acc_a, acc_b, ahead


@inline
def pair_q4(weights, memory, a, b, work, x, stride, width, ahead, rows, form):
    """``dots_q4`` with each of two panels that ``widened`` wrote, group by group side by side."""
    acc_a, acc_b = zero_f32(rows, LANES), zero_f32(rows, LANES)
    scales = x + width
    count = width // GROUP
    for g in range(count):
        start = start_of(work, scales + (count + g) * 4, stride, rows, zero_point(form))
        other = a + WIDE_BYTES
        total_a, total_b = pair_dots(memory, a, other, work, x + g * GROUP, stride, start, rows)
        scale = splat_rows_f32(work, scales + g * 4, stride, rows, LANES)
        acc_a = fma(to_f32(total_a), mul(scale, load_f32(memory, a + 512, LANES)), acc_a)
        acc_b = fma(to_f32(total_b), mul(scale, load_f32(memory, other + 512, LANES)), acc_b)
        if value(form) != Q4_0:
            sums = splat_rows_f32(work, scales + (2 * count + g) * 4, stride, rows, LANES)
            acc_a = fma(load_f32(memory, a + 576, LANES), sums, acc_a)
            acc_b = fma(load_f32(memory, other + 576, LANES), sums, acc_b)
        a, ahead = a + 2 * WIDE_BYTES, ask_ahead(weights, ahead, LINES_AHEAD)
    return acc_a, acc_b, ahead


@called
def widen_panel(weights, panel, work, out, width, form):
    """Write a 4-bit panel as [group]([8][16][4] u8, [16] f32 scale, [16] f32 minimum, 640 bytes of another panel)."""
    for g in range(width // GROUP):
        at = q4_group(panel, g, form)
        for j in range(4):
            w = load_i32(weights, at + j * 64, LANES)
            store(work, out + j * 128, low_nibbles(w))
            store(work, out + j * 128 + 64, high_nibbles(w))
        store(work, out + 512, q4_scale(weights, panel, g, form))
        if value(form) != Q4_0:
            store(work, out + 576, q4_minimum(weights, panel, g, form))
        out += 2 * WIDE_BYTES


@inline
def as_they_are(weights, a, b, work, scratch, width, form):
    """Two panels where they stand."""
    return weights, a, b


@inline
def widened(weights, a, b, work, scratch, width, form):
    """Two panels of 4-bit weights, a byte each, written once for many rows."""
    widen_panel(weights, a, work, scratch, width, form)
    widen_panel(weights, b, work, scratch + WIDE_BYTES, width, form)
    return work, scratch, scratch + WIDE_BYTES


class Task(NamedTuple):
    """Rows ``row`` to ``end_row`` - 1 of ``x``, and where their products with a panel go: offsets of row 0."""

    row: int
    end_row: int
    width: int
    x: int
    x_stride: int
    out: int
    out_stride: int
    bias: int
    adds: int


class Ways(NamedTuple):
    """What is compiled: the weights' form, most rows of a tile, and the form's own inner sequence of operations."""

    form: Any
    rows: Any
    dots: Any


class PairWays(NamedTuple):
    """The same for tiles of two panels, of ``rows`` or of ``fewer`` rows, and for tasks of ``least`` rows or more.

    ``source`` says where the panels stand.
    """

    form: Any
    rows: Any
    fewer: Any
    least: Any
    dots: Any
    source: Any


@inline
def write_tile(weights, work, task, row, out, bias, acc, rows):
    """Write a tile's products, bias and what is there already added."""
    if task.bias >= 0:
        acc = add(acc, load_f32(weights, bias, LANES))
    at = out + row * task.out_stride
    if task.adds:
        acc = add(acc, load_rows_f32(work, at, task.out_stride, rows, LANES))
    store_rows(work, at, task.out_stride, acc)


@inline
def tile(weights, panel, ahead, work, task, row, ways, rows):
    """``rows`` rows from ``row`` on times one panel."""
    at = task.x + row * task.x_stride
    acc = ways.dots(weights, panel, ahead, work, at, task.x_stride, task.width, rows, ways.form)
    write_tile(weights, work, task, row, task.out, task.bias, acc, rows)


@called
def multiply_panel(weights, panel, ahead, work, task, ways):
    """The task's rows times one panel, in as few tiles as can be, as even as can be.

    ``ahead``: how many bytes further the panel stands that this thread multiplies with next.
    """
    row, most = task.row, value(ways.rows)
    while row < task.end_row:
        left = task.end_row - row
        count = (left + most - 1) // most
        rows = (left + count - 1) // count
        if rows == 1:
            tile(weights, panel, ahead, work, task, row, ways, static(1))
        elif rows == 2:
            tile(weights, panel, ahead, work, task, row, ways, static(2))
        elif rows == 3:
            tile(weights, panel, ahead, work, task, row, ways, static(3))
        elif rows == 4 or value(ways.rows) == 4:
            tile(weights, panel, ahead, work, task, row, ways, static(4))
        elif rows == 5:
            tile(weights, panel, ahead, work, task, row, ways, static(5))
        else:
            tile(weights, panel, ahead, work, task, row, ways, static(6))
        row += rows
        ahead = 0


@inline
def pair_tiles(weights, memory, a, b, work, task, row, count, ahead, ways, rows):
    """``count`` tiles of ``rows`` rows times two panels; returns the next row, and what is left to be asked for."""
    for _ in range(count):
        at = task.x + row * task.x_stride
        acc_a, acc_b, ahead = ways.dots(
            weights, memory, a, b, work, at, task.x_stride, task.width, ahead, rows, ways.form
        )
        write_tile(weights, work, task, row, task.out, task.bias, acc_a, rows)
        write_tile(weights, work, task, row, task.out + PANEL_BYTES, task.bias + PANEL_BYTES, acc_b, rows)
        row += value(rows)
    return row, ahead


@called
def multiply_pair(weights, a, b, work, scratch, task, ahead, ways):
    """As many of the task's rows times two panels as whole tiles make; returns the next row.

    ``ahead``: the start and end of the weights that this thread is likely to multiply with next.
    """
    memory, wide_a, wide_b = ways.source(weights, a, b, work, scratch, task.width, ways.form)
    count, most, less = task.end_row - task.row, value(ways.rows), value(ways.fewer)
    fewer = -count % most
    if fewer * less > count:
        fewer = 1 if count % most == less else 0
    most_tiles = (count - fewer * less) // most
    row = task.row
    row, ahead = pair_tiles(weights, memory, wide_a, wide_b, work, task, row, most_tiles, ahead, ways, ways.rows)
    row, ahead = pair_tiles(weights, memory, wide_a, wide_b, work, task, row, fewer, ahead, ways, ways.fewer)
    return row


@inline
def rest_of(task, row, panel):
    """What is left of a task from ``row`` on, for the panel ``panel`` panels further."""
    bias = task.bias + panel * PANEL_BYTES if task.bias >= 0 else task.bias
    return Task(
        row,
        task.end_row,
        task.width,
        task.x,
        task.x_stride,
        task.out + panel * PANEL_BYTES,
        task.out_stride,
        bias,
        task.adds,
    )


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
    if value(form) == Q4_K:
        return groups // K_GROUPS * K_BYTES
    return q4_group(0, groups, form)


@inline
def task_of(chunk, line, program, table, across):
    """The rows of a chunk, for panel 0."""
    first_row = chunk // across * program[line, MM.chunk_rows]
    num_rows = table[NUM_OUTPUTS] if program[line, MM.is_last] else table[NUM_ROWS]
    return Task(
        first_row,
        min(num_rows, first_row + program[line, MM.chunk_rows]),
        program[line, MM.width],
        program[line, MM.x],
        program[line, MM.x_stride],
        program[line, MM.out],
        program[line, MM.out_stride],
        program[line, MM.bias],
        program[line, MM.adds],
    )


@inline
def multiply_two(weights, at, size, work, scratch, task, ahead, ways, pairs):
    """The task's rows times the two panels from ``at`` on, of ``size`` bytes each, two panels at a time."""
    row = task.row
    if task.end_row - row >= value(pairs.least):
        row = multiply_pair(weights, at, at + size, work, scratch, task, ahead, pairs)
    for panel in range(2):
        multiply_panel(weights, at + panel * size, size, work, rest_of(task, row, panel), ways)


@inline
def multiply_two_singly(weights, at, size, work, scratch, task, ahead, ways, pairs):
    """The same where that is slower: one panel after the other."""
    multiply_panel(weights, at, size, work, task, ways)
    multiply_panel(weights, at + size, ahead[0] - at - size, work, rest_of(task, task.row, 1), ways)


@inline
def multiply_panels(weights, work, scratch, w, panels, p, end, step, task, ways, pairs):
    """A task times panels ``p`` to ``end`` - 1 of the matrix at ``w``; many rows take two panels at a time.

    ``step``: how many panels after its first this thread is likely to go on when it is done.
    """
    size = panel_bytes(task.width, ways.form)
    if task.end_row - task.row >= value(pairs.least):
        while p + 2 <= end:
            at = w + p * size
            to = at + 2 * size if p + 4 <= end else at + step * size
            ahead = to, min(to + 2 * size, w + panels * size)
            multiply_two(weights, at, size, work, scratch, rest_of(task, task.row, p), ahead, ways, pairs)
            p += 2
    while p < end:
        multiply_panel(weights, w + p * size, size, work, rest_of(task, task.row, p), ways)
        p += 1


@inline
def multiply_singly(weights, work, scratch, w, panels, p, end, step, task, ways, pairs):
    """The same where that is slower: one panel after the other."""
    size = panel_bytes(task.width, ways.form)
    after = min(p + step, panels - 1)
    for panel in range(p, end):
        ahead = size if panel + 1 < end else (after - panel) * size
        multiply_panel(weights, w + panel * size, ahead, work, rest_of(task, task.row, panel), ways)


@inline
def matmul(chunk, thread, line, program, table, weights, work, multiply, ways, pairs):
    """A chunk is some panels times some rows."""
    panels, chunk_panels = program[line, MM.panels], program[line, MM.chunk_panels]
    across = (panels + chunk_panels - 1) // chunk_panels
    task, p = task_of(chunk, line, program, table, across), chunk % across * chunk_panels
    scratch = table[SCRATCH] + thread * table[SCRATCH_STRIDE]
    w, end, step = program[line, MM.w], min(panels, p + chunk_panels), program[line, MM.stride_panels]
    multiply(weights, work, scratch, w, panels, p, end, step, task, ways, pairs)


FOUR_BITS = (Q4_0, Q4_1, Q4_Z, Q4_K)
DOTS = {F32: dots_floats, F16: dots_floats, BF16: dots_floats, Q8_0: dots_q8, **dict.fromkeys(FOUR_BITS, dots_q4)}
PAIR_DOTS = {F32: pair_floats, F16: pair_floats, BF16: pair_floats, Q8_0: pair_q8, **dict.fromkeys(FOUR_BITS, pair_q4)}
"""Inner sequences by form: with one panel, and with two. Only what a model needs is compiled."""


def num_tile_rows(form: int) -> tuple[int, int, int, int]:
    """Most rows of a tile of one panel, of one of two panels (0: there are none), and of a smaller one of two.

    The last is from how many rows on a form takes tiles of two.
    """
    chosen = target.current()
    least = chosen.pair_rows if form <= BF16 else chosen.pairs_from
    if form in FOUR_BITS:
        least = chosen.widened_from
    if not least:
        return (chosen.tile_rows if form > BF16 else chosen.float_rows), 0, 0, 0
    return chosen.tile_rows, chosen.pair_rows, chosen.pair_rows - 1, least


def inner_of(form: int) -> tuple[Any, Any, Any]:
    """A form's inner sequences of operations, with one panel and with two, and where the two stand."""
    return DOTS[form], PAIR_DOTS[form], widened if form in FOUR_BITS else as_they_are


def matmul_kernel(form: int) -> Any:
    """The kernel that multiplies with weights of one form."""
    rows, pair_rows, fewer, least = num_tile_rows(form)
    dots, pair, source = inner_of(form)
    multiply = multiply_panels if pair_rows else multiply_singly

    @kernel(SIGNATURE)
    def run_matmul(chunk, thread, line, program, table, weights, cache, work):
        ways = Ways(static(form), static(rows), dots)
        pairs = PairWays(static(form), static(pair_rows), static(fewer), static(least), pair, source)
        matmul(chunk, thread, line, program, table, weights, work, multiply, ways, pairs)

    return run_matmul


def scratch_bytes(width: int) -> int:
    """Scratch that one thread needs for matrices of ``width`` inputs."""
    return 2 * -(-width // GROUP) * WIDE_BYTES
