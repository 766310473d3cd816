"""Scores and weighted values of one span where keys or values are int8 or int4: ``kernels.codes`` has the layout.

Both are exact integer dot products, of a query's bytes with keys, and of values with the softmax weights, which are
quantised to a byte once a span and query, the values' scales folded in. Then come the scales, in a fixed order: so no
tiling can change a bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvist.kernels import target
from kvist.kernels.codes import num_fifths
from kvist.kernels.elementwise import LOG2_E
from kvist.kernels.jit import called, inline
from kvist.kernels.layout import BLOCK_TOKENS, LANES, SPAN_BLOCKS
from kvist.kernels.simd import (
    add,
    bf16_to_f32,
    byte_product,
    dot4,
    dot4_offset,
    first_lane,
    fma,
    high_nibbles,
    keep_lanes,
    key_levels,
    load_f32,
    load_i32,
    load_u16,
    low_nibbles,
    max_lanes,
    maximum,
    mul,
    offset_sums,
    put_f32,
    splat_f32,
    splat_rows_f32,
    splat_rows_i32,
    static,
    store,
    store_rows,
    sub,
    sum_lanes,
    times_power,
    to_f32,
    value,
    value_levels,
    zero_f32,
    zero_i32,
)
from kvist.kernels.spans import (
    LOWEST,
    RECORD_HEAD,
    SCORE_BYTES,
    WEIGHTS,
    ZERO,
    ask_for,
    keys_to_come,
    low_of,
    position_of,
    record_bytes,
)

F = np.float32
SMALL = F(1e-30)
MOST = F(255)
LEAST = F(-87)
UNITS = F(1.5 * 2**23)
"""What is added to it is rounded to an integer, which its last bits then are."""
POWER = tuple(F(c) for c in (9.570101276e-3, 5.591786280e-2, 0.2402474433, 0.6931217909, 0.9999992847))
FEW = 3
"""Queries of a group that reads faster than it computes, so that memory has to be asked early. Larger groups come one
after the other over the same span, which the first one's reading has brought into the cache."""
STEP = 8
"""Where in a record the step of its weights stands."""


@inline
def offset_of(work, sums, stride, rows):
    """What a query's dot product with keys starts at: keys are stored as their number plus 128."""
    return offset_sums(splat_rows_i32(work, sums, stride, rows, LANES))


@inline
def scaled(dots, cache, scales, q_scale):
    """The dots times the keys' scales and the query's."""
    return mul(to_f32(dots), mul(bf16_to_f32(load_u16(cache, scales, LANES)), q_scale))


@inline
def keys_of(arenas, head, b, last):
    """Where the keys of block ``b`` stand, or of the last one before ``last``."""
    return head.k + arenas.table[head.blocks + min(b, last - 1)] * head.k_block


@inline
def ask_ahead(arenas, head, b, last, step, steps, shape):
    """Ask for the keys of block ``b`` + 4, and for the values of block ``b``."""
    ask_for(arenas.cache, keys_of(arenas, head, b + 4, last), step, steps, shape, shape.k_codec)
    v = head.v + arenas.table[head.blocks + min(b, last - 1)] * head.v_block
    ask_for(arenas.cache, v, step, steps, shape, shape.v_codec)


@inline
def put_scores(work, cache, scores, b, last, dots, scales, q_scale):
    """Write the scores of block ``b``, or of the last one before ``last``."""
    at = scores + min(b, last - 1) % SPAN_BLOCKS * 64
    store_rows(work, at, SCORE_BYTES, scaled(dots, cache, scales, q_scale))


@inline
def write_scores_four(arenas, head, first, last, q, scores, shape, rows):
    """Scores of blocks ``first`` to ``last`` - 1, [rows][256] at ``scores``, four blocks at a time.

    The next four blocks' keys and these blocks' values are asked for meanwhile.
    """
    dim, cache, work = value(shape.dim), arenas.cache, arenas.work
    stride, steps, scales = dim * 4, dim // 4, BLOCK_TOKENS * dim
    q_scale = splat_rows_f32(work, q + dim, stride, rows, LANES)
    offset = offset_of(work, q + dim + 4, stride, rows)
    for b in range(first, last, 4):
        k_a, k_b = keys_of(arenas, head, b, last), keys_of(arenas, head, b + 1, last)
        k_c, k_d = keys_of(arenas, head, b + 2, last), keys_of(arenas, head, b + 3, last)
        dots_a, dots_b, dots_c, dots_d = offset, offset, offset, offset
        for j in range(steps):
            if value(rows) <= FEW:
                ask_ahead(arenas, head, b, last, j, steps, shape)
                ask_ahead(arenas, head, b + 1, last, j, steps, shape)
                ask_ahead(arenas, head, b + 2, last, j, steps, shape)
                ask_ahead(arenas, head, b + 3, last, j, steps, shape)
            query = splat_rows_i32(work, q + j * 4, stride, rows, LANES)
            dots_a = dot4_offset(dots_a, load_i32(cache, k_a + j * 64, LANES), query)
            dots_b = dot4_offset(dots_b, load_i32(cache, k_b + j * 64, LANES), query)
            dots_c = dot4_offset(dots_c, load_i32(cache, k_c + j * 64, LANES), query)
            dots_d = dot4_offset(dots_d, load_i32(cache, k_d + j * 64, LANES), query)
        put_scores(work, cache, scores, b, last, dots_a, k_a + scales, q_scale)
        put_scores(work, cache, scores, b + 1, last, dots_b, k_b + scales, q_scale)
        put_scores(work, cache, scores, b + 2, last, dots_c, k_c + scales, q_scale)
        put_scores(work, cache, scores, b + 3, last, dots_d, k_d + scales, q_scale)


@inline
def write_scores_one(arenas, head, first, last, q, scores, shape, rows):
    """The same a block at a time, where there are few registers."""
    dim, cache, work = value(shape.dim), arenas.cache, arenas.work
    stride, steps, scales = dim * 4, dim // 4, BLOCK_TOKENS * dim
    q_scale = splat_rows_f32(work, q + dim, stride, rows, LANES)
    offset = offset_of(work, q + dim + 4, stride, rows)
    for b in range(first, last):
        k, dots = keys_of(arenas, head, b, last), offset
        for j in range(steps):
            if value(rows) <= FEW:
                ask_ahead(arenas, head, b, last, j, steps, shape)
            query = splat_rows_i32(work, q + j * 4, stride, rows, LANES)
            dots = dot4_offset(dots, load_i32(cache, k + j * 64, LANES), query)
        put_scores(work, cache, scores, b, last, dots, k + scales, q_scale)


write_scores_int8: Any = (
    write_scores_four if 4 * target.current().query_rows <= target.current().sums else write_scores_one
)


@inline
def dot_pair(cache, work, dots, bits, low, high, k, q, j, stride, shape, rows):
    """``dots`` plus a query's dims 4j.. and D/2 + 4j.. times int4 keys, whose fifth bits are ``low`` and ``high``."""
    both = load_i32(cache, k + j * 64, LANES)
    query = splat_rows_i32(work, q + j * 4, stride, rows, LANES)
    dots = dot4_offset(dots, key_levels(low_nibbles(both), bits, low), query)
    query = splat_rows_i32(work, q + value(shape.half) + j * 4, stride, rows, LANES)
    return dot4_offset(dots, key_levels(high_nibbles(both), bits, high), query)


@inline
def write_scores_int4(arenas, head, first, last, q, scores, shape, rows):
    """The same, a block at a time."""
    dim, half, cache, work = value(shape.dim), value(shape.half), arenas.cache, arenas.work
    stride, steps, fifths = dim * 4, half // 4, BLOCK_TOKENS * half
    scales = fifths + BLOCK_TOKENS * 4 * num_fifths(half)
    q_scale = splat_rows_f32(work, q + dim, stride, rows, LANES)
    offset = offset_of(work, q + dim + 4, stride, rows)
    for b in range(first, last):
        block = arenas.table[head.blocks + b]
        k, v = head.k + block * head.k_block, head.v + block * head.v_block
        k_next = head.k + arenas.table[head.blocks + min(b + 2, last - 1)] * head.k_block
        dots = offset
        for j in range(0, steps, 4):
            bits = load_i32(cache, k + fifths + j * 16, LANES)
            if value(rows) <= FEW:
                ask_for(cache, k_next, j // 4, (steps + 3) // 4, shape, shape.k_codec)
                ask_for(cache, v, j // 4, (steps + 3) // 4, shape, shape.v_codec)
            dots = dot_pair(cache, work, dots, bits, static(0), static(1), k, q, j, stride, shape, rows)
            if j + 1 < steps:
                dots = dot_pair(cache, work, dots, bits, static(2), static(3), k, q, j + 1, stride, shape, rows)
            if j + 2 < steps:
                dots = dot_pair(cache, work, dots, bits, static(4), static(5), k, q, j + 2, stride, shape, rows)
            if j + 3 < steps:
                dots = dot_pair(cache, work, dots, bits, static(6), static(7), k, q, j + 3, stride, shape, rows)
        store_rows(work, scores + b % SPAN_BLOCKS * 64, SCORE_BYTES, scaled(dots, cache, k + scales, q_scale))


@inline
def exp_below(x):
    """e to the x for x from -87 to 0 or below it, where it stays at e^-87; within 4e-6 of itself.

    2^f for f from -1/2 to 1/2 is a polynomial; what it feeds is rounded to 8 bits.
    """
    x, log2_e = maximum(x, splat_f32(LEAST, LANES)), splat_f32(LOG2_E, LANES)
    raised = fma(x, log2_e, splat_f32(UNITS, LANES))
    f = fma(x, log2_e, sub(splat_f32(UNITS, LANES), raised))
    p = fma(splat_f32(POWER[0], LANES), f, splat_f32(POWER[1], LANES))
    p = fma(p, f, splat_f32(POWER[2], LANES))
    p = fma(p, f, splat_f32(POWER[3], LANES))
    p = fma(p, f, splat_f32(POWER[4], LANES))
    return times_power(p, raised)


@inline
def widen_scales(arenas, head, first, last, scales, out):
    """Write the values' scales of blocks ``first`` to ``last`` - 1 as f32 [256] at ``out``."""
    for b in range(first, last):
        v = head.v + arenas.table[head.blocks + b] * head.v_block
        store(arenas.work, out + b % SPAN_BLOCKS * 64, bf16_to_f32(load_u16(arenas.cache, v + scales, LANES)))


@inline
def seen_scores(work, scores, b, is_edge, low, high):
    """A query's scores of block ``b``; those that it may not see lie below all others."""
    s = load_f32(work, scores + b % SPAN_BLOCKS * 64, LANES)
    return keep_lanes(s, b * BLOCK_TOKENS, low, high, LOWEST) if is_edge else s


@called
def soften(work, scores, scales, record, first, last, low, high):
    """Turn one query's scores of blocks ``first`` to ``last`` - 1 into weights as bytes, the values' scales in them.

    The query sees positions ``low`` to ``high`` - 1; the weight of every other one is 0. Writes to the record the
    maximum, the sum of exp(score - maximum), and the step: what a byte of 1 stands for.
    """
    is_edge = low > first * BLOCK_TOKENS or high < last * BLOCK_TOKENS
    even, odd = splat_f32(LOWEST, LANES), splat_f32(LOWEST, LANES)
    for b in range(first, last, 2):
        even = maximum(seen_scores(work, scores, b, is_edge, low, high), even)
        odd = maximum(seen_scores(work, scores, min(b + 1, last - 1), is_edge, low, high), odd)
    top = splat_f32(max_lanes(maximum(even, odd)), LANES)
    total, heaviest = zero_f32(1, LANES), zero_f32(1, LANES)
    for b in range(first, last):
        at = scores + b % SPAN_BLOCKS * 64
        p = exp_below(sub(load_f32(work, at, LANES), top))
        weight = mul(p, load_f32(work, scales + b % SPAN_BLOCKS * 64, LANES))
        if is_edge:
            p = keep_lanes(p, b * BLOCK_TOKENS, low, high, ZERO)
            weight = keep_lanes(weight, b * BLOCK_TOKENS, low, high, ZERO)
        total, heaviest = add(total, p), maximum(weight, heaviest)
        store(work, at, weight)
    most = max_lanes(heaviest)
    inverse = splat_f32(MOST / most if most > SMALL else ZERO, LANES)
    for b in range(first, last):
        weight = load_f32(work, scores + b % SPAN_BLOCKS * 64, LANES)
        store(work, scores + WEIGHTS + b % SPAN_BLOCKS * LANES, byte_product(weight, inverse))
    put_f32(work, record, first_lane(top))
    put_f32(work, record + 4, sum_lanes(total))
    put_f32(work, record + STEP, most / MOST)


@inline
def weights_of(work, scores, b, j, shape, rows):
    """The queries' weights of tokens 4j to 4j + 3 of block ``b``, in every lane."""
    at = scores + WEIGHTS + b % SPAN_BLOCKS * LANES + j * 4
    return splat_rows_i32(work, at, SCORE_BYTES, rows, shape.panel)


@inline
def put_values(work, dots, record, first_dim, shape, rows):
    """Write a panel of weighted values: the dots times the queries' steps."""
    step = splat_rows_f32(work, record + STEP, record_bytes(shape), rows, shape.panel)
    store_rows(work, record + RECORD_HEAD + first_dim * 4, record_bytes(shape), mul(to_f32(dots), step))


@called
def add_int8(arenas, head, first, last, scores, record, shape, rows):
    """Weighted values of some queries over blocks ``first`` to ``last`` - 1, a panel of dims at a time."""
    dim, panel, cache = value(shape.dim), value(shape.panel), arenas.cache
    for d in range(0, dim, panel):
        dots = zero_i32(rows, shape.panel)
        for b in range(first, last):
            v, k_next = head.v + arenas.table[head.blocks + b] * head.v_block, keys_to_come(arenas, head, b)
            for j in range(4):
                if value(rows) <= FEW:
                    ask_for(cache, k_next, d // panel * 4 + j, dim // panel * 4, shape, shape.k_codec)
                weights = weights_of(arenas.work, scores, b, j, shape, rows)
                dots = dot4(dots, weights, load_i32(cache, v + (j * dim + d) * 4, shape.panel))
        put_values(arenas.work, dots, record, d, shape, rows)


@called
def add_int4(arenas, head, first, last, scores, record, shape, rows):
    """The same, where a byte holds a dim of each half."""
    half, panel, cache = value(shape.half), value(shape.panel), arenas.cache
    for d in range(0, half, panel):
        low, high = zero_i32(rows, shape.panel), zero_i32(rows, shape.panel)
        for b in range(first, last):
            v, k_next = head.v + arenas.table[head.blocks + b] * head.v_block, keys_to_come(arenas, head, b)
            for j in range(4):
                if value(rows) <= FEW:
                    ask_for(cache, k_next, d // panel * 4 + j, half // panel * 4, shape, shape.k_codec)
                both = load_i32(cache, v + (j * half + d) * 4, shape.panel)
                weights = weights_of(arenas.work, scores, b, j, shape, rows)
                low = dot4(low, weights, value_levels(low_nibbles(both)))
                high = dot4(high, weights, value_levels(high_nibbles(both)))
        put_values(arenas.work, low, record, d, shape, rows)
        put_values(arenas.work, high, record, half + d, shape, rows)


@inline
def weigh_values(arenas, head, start, end, q, scores, records, shape, rows, joint_rows, scales, add_values):
    """Softmax and weighted values of queries ``q``.. over positions ``start`` to ``end`` - 1 of one span.

    ``scales`` is where the values' scales stand in their block.
    """
    first, last = start // BLOCK_TOKENS, (end + BLOCK_TOKENS - 1) // BLOCK_TOKENS
    record_size = record_bytes(shape)
    wide_scales = records + value(rows) * record_size
    widen_scales(arenas, head, first, last, scales, wide_scales)
    for r in range(value(rows)):
        position = position_of(head, q + r)
        low, high = low_of(head, position), min(end, position + 1)
        soften(arenas.work, scores + r * SCORE_BYTES, wide_scales, records + r * record_size, first, last, low, high)
    for r in range(0, value(rows), value(joint_rows)):
        add_values(arenas, head, first, last, scores + r * SCORE_BYTES, records + r * record_size, shape, joint_rows)


@inline
def weigh_values_int8(arenas, head, start, end, q, scores, records, shape, rows, joint_rows):
    """See ``weigh_values``."""
    scales = BLOCK_TOKENS * value(shape.dim)
    weigh_values(arenas, head, start, end, q, scores, records, shape, rows, joint_rows, scales, add_int8)


@inline
def weigh_values_int4(arenas, head, start, end, q, scores, records, shape, rows, joint_rows):
    """See ``weigh_values``."""
    scales = BLOCK_TOKENS * value(shape.half)
    weigh_values(arenas, head, start, end, q, scores, records, shape, rows, joint_rows, scales, add_int4)
