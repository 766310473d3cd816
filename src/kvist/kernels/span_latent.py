"""Weighted values of one span of latents (multi-head latent attention), which are their keys' first dims.

A latent is stored once, as a key: K ``[D/2][16][2]`` (bf16) or ``[D][16]`` (f32), so that a vector holds one dim of 16
tokens. A dim's weighted value is added up in 16 lanes, one for each place in a block, block by block in ascending
order; then the lanes are, by one fixed tree. A token that a query may not see has the weight 0 and a number that is
finite, or replaced by 0: it changes no sum but a zero's sign, so that the last step adds +0, which makes every zero
positive.
"""

from __future__ import annotations

from kvist.kernels.jit import called, inline
from kvist.kernels.layout import BLOCK_TOKENS, LANES, SPAN_BLOCKS
from kvist.kernels.simd import (
    add,
    fma,
    keep_lanes,
    load_rows_f32,
    store_rows,
    sum_four,
    value,
    zero_f32,
)
from kvist.kernels.span_floats import load_keys
from kvist.kernels.spans import RECORD_HEAD, SCORE_BYTES, ZERO, keep_weights, record_bytes, soften_rows

DIMS = 4
"""Dims that are added up together, and registers that a query takes for them."""


@inline
def load_latents(arenas, head, block, d, start, end, shape):
    """Dims d to d + 3 of a block's 16 latents; those outside positions ``start`` to ``end`` - 1 are 0."""
    k = head.k + arenas.table[head.blocks + block] * head.k_block
    a, b = load_keys(arenas.cache, k, d, shape)
    c, e = load_keys(arenas.cache, k, d + 2, shape)
    first = block * BLOCK_TOKENS
    if first < start or first + BLOCK_TOKENS > end:
        a, b = keep_lanes(a, first, start, end, ZERO), keep_lanes(b, first, start, end, ZERO)
        c, e = keep_lanes(c, first, start, end, ZERO), keep_lanes(e, first, start, end, ZERO)
    return a, b, c, e


@called
def add_latents(arenas, head, start, end, scores, values, shape, rows):
    """values[r] = the sum of weight[r, t] * latent[t] over positions ``start`` to ``end`` - 1 of one span."""
    first, last = start // BLOCK_TOKENS, (end + BLOCK_TOKENS - 1) // BLOCK_TOKENS
    for d in range(0, value(shape.v_dim), DIMS):
        sum_a, sum_b = zero_f32(rows, LANES), zero_f32(rows, LANES)
        sum_c, sum_e = zero_f32(rows, LANES), zero_f32(rows, LANES)
        for block in range(first, last):
            a, b, c, e = load_latents(arenas, head, block, d, start, end, shape)
            shares = load_rows_f32(arenas.work, scores + block % SPAN_BLOCKS * 64, SCORE_BYTES, rows, LANES)
            sum_a, sum_b = fma(shares, a, sum_a), fma(shares, b, sum_b)
            sum_c, sum_e = fma(shares, c, sum_c), fma(shares, e, sum_e)
        total = add(sum_four(sum_a, sum_b, sum_c, sum_e), zero_f32(1, DIMS))
        store_rows(arenas.work, values + d * 4, record_bytes(shape), total)


@inline
def weigh_values(arenas, head, start, end, q, scores, records, shape, rows, joint_rows):
    """Softmax and weighted values of queries ``q``.. over positions ``start`` to ``end`` - 1 of one span, all written.

    Queries see different parts of them: their weights say which.
    """
    first, last = start // BLOCK_TOKENS, (end + BLOCK_TOKENS - 1) // BLOCK_TOKENS
    soften_rows(arenas, head, first, last, end, q, scores, records, shape, rows, keep_weights)
    for r in range(0, value(rows), value(joint_rows)):
        values = records + r * record_bytes(shape) + RECORD_HEAD
        add_latents(arenas, head, start, end, scores + r * SCORE_BYTES, values, shape, joint_rows)
