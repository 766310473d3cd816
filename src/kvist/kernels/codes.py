"""Keys, values and queries as small integers: how int8 and int4 are written, and what a query meets them with.

A head is first turned by a Hadamard matrix, which spreads what is large over all dims. The query is turned as well, and
what attention gives is turned back, so that nothing but the rounding differs. A head has one scale, the smallest
bfloat16 that is at least amax / 127. int8: rint(x / scale). int4: the nearest level, of 32 for a key (five bits) and of
16 for a value (four): a key's error moves all weights of a softmax, a value's only its own part of the sum.

A KV head's block, codes first, then the scales [16] as bfloat16:

    int8    K [D/4][16][4] bytes, q + 128               V [4][D][4] bytes, four tokens side by side
    int4    K [D/8][16][4], V [4][D/2][4]               a byte holds dim d (low four bits) and dim d + D/2 of a token
            K then [D/32, rounded up][16][4]            fifth bits: bits 2j and 2j + 1 of a byte are those of [4i + j]

A query, in as many bytes as in f32: [D] rint(x * (127 / amax)) as int8, its f32 scale, its int32 sum.
"""

from __future__ import annotations

import numpy as np

from kvist.kernels.elementwise import inverse_root
from kvist.kernels.jit import called, inline
from kvist.kernels.layout import BLOCK_TOKENS
from kvist.kernels.simd import (
    absolute,
    add_i32,
    bf16_above,
    bf16_to_f32,
    butterfly,
    div,
    first_lane,
    get_i8,
    get_i32,
    get_u16,
    high_nibbles,
    load_f32,
    low_nibbles,
    max_lanes,
    maximum,
    minimum,
    mul,
    mul_i32,
    narrow_i8,
    nearest_key_levels,
    nearest_value_levels,
    put_f32,
    put_i8,
    put_i32,
    put_u16,
    rint,
    splat_f32,
    splat_i32,
    store,
    sum_lanes_i32,
    to_i32,
    value,
    zero_f32,
)

F = np.float32
ZERO, ONE, TOP = F(0), F(1), F(127)
SMALL = F(1e-30)
"""What is smaller in size counts as zero where its inverse is needed."""


@inline
def num_fifths(half):
    """Words of four bytes that hold the fifth bits of a key."""
    return (half + 15) // 16


@called
def turn(work, at, out, shape):
    """A head times a Hadamard matrix over as many dims as their largest power of two, and its inverse."""
    x = load_f32(work, at, shape.dim)
    x = butterfly(butterfly(butterfly(butterfly(x, 1), 2), 4), 8)
    x = butterfly(butterfly(butterfly(butterfly(x, 16), 32), 64), 128)
    size = value(shape.dim) & -value(shape.dim)
    store(work, out, mul(x, splat_f32(inverse_root(F(size)), shape.dim)))


@inline
def largest_of(work, at, count):
    """The largest absolute value of ``count`` numbers, a multiple of 8."""
    largest = zero_f32(1, 8)
    for i in range(0, count, 8):
        largest = maximum(absolute(load_f32(work, at + i * 4, 8)), largest)
    return max_lanes(largest)


@inline
def write_scale(work, at, count, cache, out, scratch):
    """Write the scale of ``count`` numbers; returns what they are divided by."""
    bits = bf16_above(splat_f32(largest_of(work, at, count) / TOP, 8))
    store(work, scratch, bits)
    put_u16(cache, out, get_u16(work, scratch))
    scale = first_lane(bf16_to_f32(bits))
    return scale if scale > ZERO else ONE


@inline
def bounded(x, most, lanes):
    """x as the nearest int32, between -most and most; NaN too becomes one of them."""
    nearest = rint(x)
    return to_i32(minimum(maximum(nearest, splat_f32(-most, lanes)), splat_f32(most, lanes)))


@inline
def encode_int8(work, at, cache, scales, slot, scratch, zero, shape):
    """A head's codes plus ``zero``, [D] bytes at ``scratch``; its scale is written."""
    divisor = write_scale(work, at, value(shape.dim), cache, scales + slot * 2, scratch)
    quotient = div(load_f32(work, at, shape.dim), splat_f32(divisor, shape.dim))
    store(work, scratch, narrow_i8(add_i32(bounded(quotient, TOP, shape.dim), splat_i32(zero, shape.dim))))


@inline
def write_nibbles(work, low, high, half, out):
    """Write two halves of a head's codes, below 16, as D/2 bytes."""
    store(work, out, narrow_i8(add_i32(low, mul_i32(high, splat_i32(np.int32(16), half)))))


@inline
def put_key(work, codes, words, cache, block, slot):
    """Write a key's codes, ``words`` of four bytes, into their column."""
    for j in range(words):
        put_i32(cache, block + (j * BLOCK_TOKENS + slot) * 4, get_i32(work, codes + j * 4))


@inline
def put_value(work, codes, count, cache, block, slot):
    """Write a value's codes beside those of the three tokens around it."""
    at = block + slot // 4 * count * 4 + slot % 4
    for d in range(count):
        put_i8(cache, at + d * 4, get_i8(work, codes + d))


@inline
def write_key_int8(work, at, cache, block, slot, scratch, shape):
    """Write a key into its column; turns it in place."""
    dim = value(shape.dim)
    turn(work, at, at, shape)
    encode_int8(work, at, cache, block + BLOCK_TOKENS * dim, slot, scratch, np.int32(128), shape)
    put_key(work, scratch, dim // 4, cache, block, slot)


@inline
def write_value_int8(work, at, cache, block, slot, scratch, shape):
    """Write a value into its slot; leaves it turned, and its codes after it, at ``scratch``."""
    dim, codes = value(shape.dim), scratch + value(shape.dim) * 4
    turn(work, at, scratch, shape)
    encode_int8(work, scratch, cache, block + BLOCK_TOKENS * dim, slot, codes, np.int32(0), shape)
    put_value(work, codes, dim, cache, block, slot)


@inline
def write_key_int4(work, at, cache, block, slot, scratch, shape):
    """Write a key into its column; turns it in place."""
    half = value(shape.half)
    words, fifths = half // 4, block + BLOCK_TOKENS * half
    turn(work, at, at, shape)
    scales = fifths + BLOCK_TOKENS * 4 * num_fifths(half)
    divisor = write_scale(work, at, value(shape.dim), cache, scales + slot * 2, scratch)
    low = nearest_key_levels(div(load_f32(work, at, shape.half), splat_f32(divisor, shape.half)))
    high = nearest_key_levels(div(load_f32(work, at + half * 4, shape.half), splat_f32(divisor, shape.half)))
    write_nibbles(work, low_nibbles(low), low_nibbles(high), shape.half, scratch)
    put_key(work, scratch, words, cache, block, slot)
    store(work, scratch, narrow_i8(high_nibbles(low)))
    store(work, scratch + half, narrow_i8(high_nibbles(high)))
    for first in range(0, words, 4):
        bits = np.int32(0)
        for j in range(first, min(first + 4, words)):
            bits |= get_i32(work, scratch + j * 4) << (j - first) * 2
            bits |= get_i32(work, scratch + half + j * 4) << (j - first) * 2 + 1
        put_i32(cache, fifths + (first // 4 * BLOCK_TOKENS + slot) * 4, np.int32(bits))


@inline
def write_value_int4(work, at, cache, block, slot, scratch, shape):
    """Write a value into its slot; leaves it turned, and its codes after it, at ``scratch``."""
    half, codes = value(shape.half), scratch + value(shape.dim) * 4
    turn(work, at, scratch, shape)
    divisor = write_scale(work, scratch, value(shape.dim), cache, block + BLOCK_TOKENS * half + slot * 2, codes)
    low = nearest_value_levels(div(load_f32(work, scratch, shape.half), splat_f32(divisor, shape.half)))
    high = nearest_value_levels(div(load_f32(work, scratch + half * 4, shape.half), splat_f32(divisor, shape.half)))
    write_nibbles(work, low, high, shape.half, codes)
    put_value(work, codes, half, cache, block, slot)


@called
def write_query(work, at, out, shape):
    """Write a query for int8 and int4 keys; turns it in place."""
    dim = value(shape.dim)
    turn(work, at, at, shape)
    largest = largest_of(work, at, dim)
    inverse = splat_f32(TOP / largest if largest > SMALL else ZERO, 8)
    total = np.int32(0)
    for i in range(0, dim, 8):
        numbers = bounded(mul(load_f32(work, at + i * 4, 8), inverse), TOP, 8)
        store(work, out + i, narrow_i8(numbers))
        total += sum_lanes_i32(numbers)
    put_f32(work, out + dim, largest / TOP)
    put_i32(work, out + dim + 4, np.int32(total))
