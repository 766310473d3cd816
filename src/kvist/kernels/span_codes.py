"""Scores and weighted values of one span where keys or values are int8 or int4: ``kernels.codes`` has the layout.

Both are exact integer dot products, of a query's bytes with keys, and of values with the softmax weights, which are
quantised to a byte once a span and query, the values' scales folded in. Then come the scales, in a fixed order: so no
tiling can change a bit.
"""

from __future__ import annotations

import numpy as np

from kvist.kernels.codes import num_fifths
from kvist.kernels.jit import called, inline
from kvist.kernels.layout import BLOCK_TOKENS, LANES, SPAN_BLOCKS
from kvist.kernels.simd import (
    bf16_to_f32,
    dot4,
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
    mul_i32,
    narrow_i8,
    put_f32,
    rint,
    splat_f32,
    splat_i32,
    splat_rows_f32,
    splat_rows_i32,
    static,
    store,
    store_rows,
    to_f32,
    to_i32,
    value,
    value_levels,
    zero_f32,
    zero_i32,
)
from kvist.kernels.spans import (
    RECORD_HEAD,
    SCORE_BYTES,
    WEIGHTS,
    ZERO,
    ask_for,
    low_of,
    position_of,
    record_bytes,
)

F = np.float32
SMALL = F(1e-30)
MOST = F(255)
STEP = 8
"""Where in a record the step of its weights stands."""


@inline
def offset_of(work, sums, stride, rows):
    """What a query's dot product with keys starts at: keys are stored as their number plus 128."""
    return mul_i32(splat_rows_i32(work, sums, stride, rows, LANES), splat_i32(np.int32(-128), LANES))


@inline
def scaled(dots, cache, scales, q_scale):
    """The dots times the keys' scales and the query's."""
    return mul(to_f32(dots), mul(bf16_to_f32(load_u16(cache, scales, LANES)), q_scale))


@inline
def write_scores_int8(arenas, head, first, last, q, scores, shape, rows):
    """Scores of blocks ``first`` to ``last`` - 1, [rows][256] at ``scores``, two blocks at a time.

    The next two blocks' keys and these blocks' values are asked for meanwhile.
    """
    dim, cache, work = value(shape.dim), arenas.cache, arenas.work
    stride, steps, scales = dim * 4, dim // 4, BLOCK_TOKENS * dim
    q_scale = splat_rows_f32(work, q + dim, stride, rows, LANES)
    offset = offset_of(work, q + dim + 4, stride, rows)
    for b in range(first, last, 2):
        other = min(b + 1, last - 1)
        block_a, block_b = arenas.table[head.blocks + b], arenas.table[head.blocks + other]
        k_a, k_b = head.k + block_a * head.k_block, head.k + block_b * head.k_block
        v_a, v_b = head.v + block_a * head.v_block, head.v + block_b * head.v_block
        next_a = head.k + arenas.table[head.blocks + min(b + 2, last - 1)] * head.k_block
        next_b = head.k + arenas.table[head.blocks + min(b + 3, last - 1)] * head.k_block
        dots_a, dots_b = offset, offset
        for j in range(steps):
            ask_for(cache, next_a, j, steps, shape, shape.k_codec)
            ask_for(cache, next_b, j, steps, shape, shape.k_codec)
            ask_for(cache, v_a, j, steps, shape, shape.v_codec)
            ask_for(cache, v_b, j, steps, shape, shape.v_codec)
            query = splat_rows_i32(work, q + j * 4, stride, rows, LANES)
            dots_a = dot4(dots_a, load_i32(cache, k_a + j * 64, LANES), query)
            dots_b = dot4(dots_b, load_i32(cache, k_b + j * 64, LANES), query)
        store_rows(work, scores + b % SPAN_BLOCKS * 64, SCORE_BYTES, scaled(dots_a, cache, k_a + scales, q_scale))
        store_rows(work, scores + other % SPAN_BLOCKS * 64, SCORE_BYTES, scaled(dots_b, cache, k_b + scales, q_scale))


@inline
def dot_pair(cache, work, dots, bits, low, high, k, q, j, stride, shape, rows):
    """``dots`` plus a query's dims 4j.. and D/2 + 4j.. times int4 keys, whose fifth bits are ``low`` and ``high``."""
    both = load_i32(cache, k + j * 64, LANES)
    query = splat_rows_i32(work, q + j * 4, stride, rows, LANES)
    dots = dot4(dots, key_levels(low_nibbles(both), bits, low), query)
    query = splat_rows_i32(work, q + value(shape.half) + j * 4, stride, rows, LANES)
    return dot4(dots, key_levels(high_nibbles(both), bits, high), query)


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
def weight_of(arenas, head, scores, b, low, high, is_edge, scales):
    """A query's softmax weights of block ``b`` times its values' scales; 0 for tokens outside ``low`` to ``high``."""
    v = head.v + arenas.table[head.blocks + b] * head.v_block
    scale = bf16_to_f32(load_u16(arenas.cache, v + scales, LANES))
    weight = mul(load_f32(arenas.work, scores + b % SPAN_BLOCKS * 64, LANES), scale)
    return keep_lanes(weight, b * BLOCK_TOKENS, low, high, ZERO) if is_edge else weight


@called
def quantise_weights(arenas, head, scores, record, first, last, low, high, scales):
    """Write a query's weights as bytes, of which 1 stands for the step that is put into its record.

    ``scales`` is where the values' scales stand in their block.
    """
    is_edge = low > first * BLOCK_TOKENS or high < last * BLOCK_TOKENS
    largest = zero_f32(1, LANES)
    for b in range(first, last):
        largest = maximum(weight_of(arenas, head, scores, b, low, high, is_edge, scales), largest)
    top = max_lanes(largest)
    inverse = splat_f32(MOST / top if top > SMALL else ZERO, LANES)
    put_f32(arenas.work, record + STEP, top / MOST)
    for b in range(first, last):
        weight = weight_of(arenas, head, scores, b, low, high, is_edge, scales)
        at = scores + WEIGHTS + b % SPAN_BLOCKS * LANES
        store(arenas.work, at, narrow_i8(to_i32(rint(mul(weight, inverse)))))


@inline
def quantise_all(arenas, head, first, last, q, scores, records, shape, rows, scales):
    """Quantise the weights of all queries."""
    for r in range(value(rows)):
        position, record = position_of(head, q + r), records + r * record_bytes(shape)
        low, high = low_of(head, position), position + 1
        quantise_weights(arenas, head, scores + r * SCORE_BYTES, record, first, last, low, high, scales)


@inline
def next_keys(arenas, head, b):
    """Where the keys of the next span's block stand that follows block ``b``; they are asked for in time."""
    return head.k + arenas.table[head.blocks + min(b + SPAN_BLOCKS, head.last_block)] * head.k_block


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
            v, k_next = head.v + arenas.table[head.blocks + b] * head.v_block, next_keys(arenas, head, b)
            for j in range(4):
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
            v, k_next = head.v + arenas.table[head.blocks + b] * head.v_block, next_keys(arenas, head, b)
            for j in range(4):
                ask_for(cache, k_next, d // panel * 4 + j, half // panel * 4, shape, shape.k_codec)
                both = load_i32(cache, v + (j * half + d) * 4, shape.panel)
                weights = weights_of(arenas.work, scores, b, j, shape, rows)
                low = dot4(low, weights, value_levels(low_nibbles(both)))
                high = dot4(high, weights, value_levels(high_nibbles(both)))
        put_values(arenas.work, low, record, d, shape, rows)
        put_values(arenas.work, high, record, half + d, shape, rows)


@inline
def weigh_values(arenas, head, start, end, q, scores, records, shape, rows, joint_rows, scales, add_values):
    """Weighted values of queries ``q``.. over positions ``start`` to ``end`` - 1 of one span."""
    first, last = start // BLOCK_TOKENS, (end + BLOCK_TOKENS - 1) // BLOCK_TOKENS
    quantise_all(arenas, head, first, last, q, scores, records, shape, rows, scales)
    for r in range(0, value(rows), value(joint_rows)):
        record = records + r * record_bytes(shape)
        add_values(arenas, head, first, last, scores + r * SCORE_BYTES, record, shape, joint_rows)


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
