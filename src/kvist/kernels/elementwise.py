"""Work on one row at a time: exp and activations, norms, and the int8 form that quantised weights are multiplied with.

All arithmetic is fixed here, exp included: NumPy's and the C library's change with the processor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvist.kernels.jit import SIGNATURE, inline, kernel
from kvist.kernels.layout import (
    GROUP,
    LANES,
    NUM_ROWS,
    OUTPUTS,
    ROW_STEP,
    SCRATCH,
    SCRATCH_STRIDE,
    STATUS,
    fields,
)
from kvist.kernels.simd import (
    absolute,
    add,
    add_i32,
    div,
    first_lane,
    fma,
    get_f32,
    get_i64,
    keep_lanes,
    load_f32,
    max_lanes,
    maximum,
    minimum,
    mul,
    narrow_i8,
    power_of_two,
    put_f32,
    put_i32,
    put_i64,
    rint,
    splat_f32,
    square_root,
    static,
    store,
    sub,
    sum_lanes,
    sum_lanes_i32,
    to_i32,
    value,
    zero_f32,
)

F = np.float32
ZERO, ONE = F(0), F(1)
LOG2_E = F(1.4426950408889634)
LN2_HIGH, LN2_LOW = F(0.693359375), F(-2.12194440e-4)
EXP = tuple(
    F(c) for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
)
EXP_LOW, EXP_HIGH = F(-87.0), F(88.0)
GELU_SLOPE, GELU_CUBE = F(-1.5957691216057308), F(0.044715)

ERFC_SLOPE, ERFC_SCALE, HALF = F(0.4), F(0.7071067811865476), F(0.5)
ERFC = tuple(
    F(c)
    for c in (
        *(1.57346992637e-4, 1.99945134227e-4, -1.85059255455e-3, -3.37791140191e-3),
        *(1.13265533e-2, 6.85042440891e-2, 1.81567177176e-1, 3.21860581636e-1, 4.21612709761e-1),
    )
)
"""erfc(a) e^(a^2) = t P(2t - 1) with t = 1 / (1 + 0.4 a): fitted to Python's within 6e-8 of its value, a >= 0."""
SWIGLU_SLOPE, SWIGLU_LIMIT = F(1.702), F(7)

SILU, GELU_TANH, GELU, SWIGLU_CLAMPED = range(4)
ACTIVATIONS = {"silu": SILU, "gelu_tanh": GELU_TANH, "gelu": GELU, "swiglu_clamped": SWIGLU_CLAMPED}

RMS, LAYER, NONE = range(3)
NORMS = {"rms": RMS, "layer": LAYER, "none": NONE}

NORM = fields("x stride width weight bias eps out out_stride is_last")

ACT = fields("gate up stride width segment out out_stride")


@inline
def exp(x):
    """e to the x, within 2 units in the last place, for x clamped to -87..88 (Cephes' expf with fused steps)."""
    x = minimum(maximum(x, splat_f32(EXP_LOW, LANES)), splat_f32(EXP_HIGH, LANES))
    k = rint(mul(x, splat_f32(LOG2_E, LANES)))
    r = fma(k, splat_f32(-LN2_HIGH, LANES), x)
    r = fma(k, splat_f32(-LN2_LOW, LANES), r)
    p = fma(splat_f32(EXP[0], LANES), r, splat_f32(EXP[1], LANES))
    p = fma(p, r, splat_f32(EXP[2], LANES))
    p = fma(p, r, splat_f32(EXP[3], LANES))
    p = fma(p, r, splat_f32(EXP[4], LANES))
    p = fma(p, r, splat_f32(EXP[5], LANES))
    p = fma(p, mul(r, r), add(r, splat_f32(ONE, LANES)))
    return mul(p, power_of_two(to_i32(k)))


@inline
def gelu(x):
    """x (1 + erf(x / sqrt 2)) / 2, as max(x, 0) - |x| erfc(|x| / sqrt 2) / 2."""
    size, one = absolute(x), splat_f32(ONE, LANES)
    t = div(one, fma(mul(size, splat_f32(ERFC_SCALE, LANES)), splat_f32(ERFC_SLOPE, LANES), one))
    s = sub(add(t, t), one)
    p = fma(splat_f32(ERFC[0], LANES), s, splat_f32(ERFC[1], LANES))
    p = fma(p, s, splat_f32(ERFC[2], LANES))
    p = fma(p, s, splat_f32(ERFC[3], LANES))
    p = fma(p, s, splat_f32(ERFC[4], LANES))
    p = fma(p, s, splat_f32(ERFC[5], LANES))
    p = fma(p, s, splat_f32(ERFC[6], LANES))
    p = fma(p, s, splat_f32(ERFC[7], LANES))
    p = fma(p, s, splat_f32(ERFC[8], LANES))
    tail = mul(mul(t, p), exp(mul(mul(x, x), splat_f32(-HALF, LANES))))
    return sub(maximum(x, splat_f32(ZERO, LANES)), mul(mul(size, splat_f32(HALF, LANES)), tail))


@inline
def activate(x, activation):
    """silu(x), gelu(x), or its tanh form written as x / (1 + exp(-2y)), y = sqrt(2/pi) (x + 0.044715 x^3)."""
    one = splat_f32(ONE, LANES)
    if value(activation) == SILU:
        return div(x, add(one, exp(sub(splat_f32(ZERO, LANES), x))))
    if value(activation) == GELU:
        return gelu(x)
    cube = mul(mul(mul(x, x), x), splat_f32(GELU_CUBE, LANES))
    return div(x, add(one, exp(mul(add(x, cube), splat_f32(GELU_SLOPE, LANES)))))


@inline
def activate_pair(gate, up, activation):
    """act(gate) * up; or gpt-oss's (up + 1) * gate * sigmoid(1.702 gate), both clamped: see ``SWIGLU_CLAMPED``."""
    if value(activation) == SWIGLU_CLAMPED:
        limit, one = splat_f32(SWIGLU_LIMIT, LANES), splat_f32(ONE, LANES)
        gate = minimum(limit, gate)  # of NaN and a number both give the second
        up = maximum(splat_f32(-SWIGLU_LIMIT, LANES), minimum(limit, up))
        glu = div(gate, add(one, exp(mul(gate, splat_f32(-SWIGLU_SLOPE, LANES)))))
        return mul(add(up, one), glu)
    return mul(activate(gate, activation), up)


@inline
def place_of(line, row):
    """A line of the program and a row of the pass as one number, for the status."""
    return row << 32 | line


@inline
def report(work, place):
    """Say in the status that NaN or infinity was met at a place, unless it was met earlier."""
    if get_i64(work, STATUS) == 0:
        put_i64(work, STATUS, place + 1)


@inline
def quantise_group(memory, at, inverse, out):
    """Write 16 values times ``inverse`` as int8; returns them."""
    scaled = rint(mul(load_f32(memory, at, LANES), inverse))
    bounded = to_i32(minimum(maximum(scaled, splat_f32(F(-127), LANES)), splat_f32(F(127), LANES)))
    store(memory, out, narrow_i8(bounded))
    return bounded


@inline
def quantise_groups(memory, at, first, end, width, out, place):
    """Write groups ``first`` to ``end`` - 1 of an f32 row as int8, rint(x * (127 / amax)), with a scale a group of 32.

    ``at`` is the row's first value, ``out`` where its quantised form starts. Sets the status to ``place`` where a value
    is NaN or infinite.
    """
    scales = out + width
    count = width // GROUP
    check = zero_f32(1, LANES)
    for g in range(first, end):
        low = load_f32(memory, at + g * 128, LANES)
        high = load_f32(memory, at + g * 128 + 64, LANES)
        largest = max_lanes(maximum(absolute(low), absolute(high)))
        check = fma(low, splat_f32(ZERO, LANES), fma(high, splat_f32(ZERO, LANES), check))
        inverse = splat_f32(F(127) / largest if largest > ZERO else ZERO, LANES)
        scale = largest / F(127)
        low_codes = quantise_group(memory, at + g * 128, inverse, out + g * GROUP)
        high_codes = quantise_group(memory, at + g * 128 + 64, inverse, out + g * GROUP + 16)
        total = sum_lanes_i32(add_i32(low_codes, high_codes))
        put_f32(memory, scales + g * 4, scale)
        put_i32(memory, scales + (count + g) * 4, np.int32(total))
        put_f32(memory, scales + (2 * count + g) * 4, scale * F(total))
    if sum_lanes(check) != ZERO:
        report(memory, place)


@inline
def quantise(memory, at, width, out, place):
    """A whole row, see ``quantise_groups``."""
    quantise_groups(memory, at, 0, width // GROUP, width, out, place)


@inline
def mean_of(memory, at, width):
    """The mean of a row of f32; lanes past the width don't count."""
    total = zero_f32(1, LANES)
    for i in range(0, width, LANES):
        total = add(total, keep_lanes(load_f32(memory, at + i * 4, LANES), i, 0, width, ZERO))
    return sum_lanes(total) / F(width)


@inline
def mean_square(memory, at, width, mean):
    """The mean of (x - mean)^2; lanes past the width don't count."""
    total = zero_f32(1, LANES)
    shift = splat_f32(mean, LANES)
    for i in range(0, width, LANES):
        x = keep_lanes(sub(load_f32(memory, at + i * 4, LANES), shift), i, 0, width, ZERO)
        total = fma(x, x, total)
    return sum_lanes(total) / F(width)


@inline
def inverse_root(x):
    """1 / sqrt(x), both steps correctly rounded."""
    return first_lane(div(splat_f32(ONE, LANES), square_root(splat_f32(x, LANES))))


@inline
def norm_row(memory, at, width, weights, weight, bias, eps, out, kind):
    """RMSNorm or LayerNorm of one row, or the row as it is; lanes past the width come out as zero."""
    if value(kind) == NONE:
        for i in range(0, padded_width(width), LANES):
            store(memory, out + i * 4, keep_lanes(load_f32(memory, at + i * 4, LANES), i, 0, width, ZERO))
        return
    mean = mean_of(memory, at, width) if value(kind) == LAYER else ZERO
    factor = splat_f32(inverse_root(mean_square(memory, at, width, mean) + eps), LANES)
    shift = splat_f32(mean, LANES)
    for i in range(0, padded_width(width), LANES):
        x = mul(mul(sub(load_f32(memory, at + i * 4, LANES), shift), factor), load_f32(weights, weight + i * 4, LANES))
        if bias >= 0:
            x = add(x, load_f32(weights, bias + i * 4, LANES))
        store(memory, out + i * 4, keep_lanes(x, i, 0, width, ZERO))


@inline
def padded_width(width):
    """``width`` rounded up to a multiple of 32, as ``layout.padded``."""
    return (width + GROUP - 1) // GROUP * GROUP


@inline
def rows_of(chunk, table):
    """The first row of a chunk of rows, and the one after its last."""
    first = chunk * table[ROW_STEP]
    return first, min(first + table[ROW_STEP], table[NUM_ROWS])


@inline
def norm_one(row, number, thread, line, program, table, weights, work, kind, is_quantised):
    """x -> norm(x) of one row, as f32 or quantised, to the place of row ``number``."""
    width = program[line, NORM.width]
    at = program[line, NORM.x] + row * program[line, NORM.stride]
    out = program[line, NORM.out] + number * program[line, NORM.out_stride]
    normed = table[SCRATCH] + thread * table[SCRATCH_STRIDE] if value(is_quantised) else out
    eps = get_f32(weights, program[line, NORM.eps])
    norm_row(work, at, width, weights, program[line, NORM.weight], program[line, NORM.bias], eps, normed, kind)
    if value(is_quantised):
        quantise(work, normed, padded_width(width), out, place_of(line, row))


@inline
def norm(chunk, thread, line, program, table, weights, work, kind, is_quantised):
    """Some rows; of those whose logits are wanted, one."""
    is_last = program[line, NORM.is_last] > 0
    first, end = rows_of(chunk, table)
    if is_last:
        first, end = chunk, chunk + 1
    for number in range(first, end):
        row = table[table[OUTPUTS] + number] if is_last else number
        norm_one(row, number, thread, line, program, table, weights, work, kind, is_quantised)


@inline
def activation(chunk, thread, line, program, table, work, kind, is_quantised):
    """A segment of some rows."""
    segment, padded = program[line, ACT.segment], padded_width(program[line, ACT.width])
    segments = (padded + segment - 1) // segment
    first_row, end_row = rows_of(chunk // segments, table)
    first = chunk % segments * segment
    for row in range(first_row, end_row):
        activate_row(row, first, min(first + segment, padded), thread, line, program, table, work, kind, is_quantised)


@inline
def activate_row(row, first, end, thread, line, program, table, work, kind, is_quantised):
    """Columns of one row: gate -> act(gate), times up where there is one; as f32 or quantised."""
    width = program[line, ACT.width]
    gate, up = program[line, ACT.gate] + row * program[line, ACT.stride], program[line, ACT.up]
    out = program[line, ACT.out] + row * program[line, ACT.out_stride]
    to = table[SCRATCH] + thread * table[SCRATCH_STRIDE] if value(is_quantised) else out
    for i in range(first, end, LANES):
        x = activate(keep_lanes(load_f32(work, gate + i * 4, LANES), i, 0, width, ZERO), kind)
        if up >= 0:
            other = up + row * program[line, ACT.stride]
            x = mul(x, keep_lanes(load_f32(work, other + i * 4, LANES), i, 0, width, ZERO))
        store(work, to + i * 4, x)
    if value(is_quantised):
        quantise_groups(work, to, first // GROUP, end // GROUP, padded_width(width), out, place_of(line, row))


def norm_kernel(kind: int, is_quantised: bool) -> Any:
    """The kernel of RMSNorm, LayerNorm or none (rows are then only quantised); a chunk is some rows."""

    @kernel(SIGNATURE)
    def run_norm(chunk, thread, line, program, table, weights, cache, work):
        norm(chunk, thread, line, program, table, weights, work, static(kind), static(is_quantised))

    return run_norm


def activation_kernel(kind: int, is_quantised: bool) -> Any:
    """The kernel of an activation, gated or not; a chunk is a segment of some rows (a multiple of 32 columns)."""

    @kernel(SIGNATURE)
    def run_activation(chunk, thread, line, program, table, weights, cache, work):
        activation(chunk, thread, line, program, table, work, static(kind), static(is_quantised))

    return run_activation
