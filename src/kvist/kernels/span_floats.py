"""Scores and weighted values of one span where keys and values are multiplied as f32 numbers.

A KV head's block in the cache arena: K ``[D][16]``, or of latents in bf16 ``[D/2][16][2]``; V ``[16][D]``, which is
added token by token in ascending order.
"""

from __future__ import annotations

from typing import Any

from kvist.kernels import target
from kvist.kernels.jit import called, inline
from kvist.kernels.layout import BLOCK_TOKENS, LANES, SPAN_BLOCKS, SPAN_TOKENS
from kvist.kernels.simd import (
    add,
    bf16_even,
    bf16_odd,
    fma,
    load_f32,
    load_i32,
    load_rows_f32,
    settle,
    splat_rows_f32,
    store_rows,
    value,
    zero_f32,
)
from kvist.kernels.spans import (
    CODEC_BF16,
    SCORE_BYTES,
    add_all_values,
    add_by_dims,
    ask_for,
    keep_weights,
    keys_to_come,
    low_of,
    position_of,
    record_bytes,
    soften_rows,
)


@inline
def load_keys(cache, k, d, shape):
    """Dims d and d + 1 of a block's 16 keys, as two vectors."""
    if value(shape.k_codec) == CODEC_BF16:
        pair = load_i32(cache, k + d * 32, LANES)
        return bf16_even(pair), bf16_odd(pair)
    return load_f32(cache, k + d * 64, LANES), load_f32(cache, k + d * 64 + 64, LANES)


HAS_TWO_BLOCKS = 2 * target.current().query_rows <= target.current().sums
"""Whether there are registers for the scores of two blocks at a time."""
BLOCKS_AHEAD = 6
"""How many blocks before its turn a block is asked for: an even stream of requests, of keys and then of values."""


@inline
def after_keys(arenas, head, b, first, last):
    """Where the block stands that is read BLOCKS_AHEAD blocks after the keys of ``b``: further keys, or values."""
    to = b + BLOCKS_AHEAD
    if to < last:
        return head.k + arenas.table[head.blocks + to] * head.k_block
    return head.v + arenas.table[head.blocks + min(first + to - last, last - 1)] * head.v_block


@inline
def after_values(arenas, head, b, last):
    """The same after the values of ``b``, of which ``last`` are the last: further values, or keys to come."""
    to = b + BLOCKS_AHEAD
    if to <= last:
        return head.v + arenas.table[head.blocks + to] * head.v_block
    return keys_to_come(arenas, head, last // SPAN_BLOCKS * SPAN_BLOCKS + min(to - last - 1, SPAN_BLOCKS - 1))


@inline
def ask_meanwhile(arenas, later, v, step, shape):
    """Ask for a part of the block at ``later``, while one of D/2 pairs of dims is multiplied."""
    steps = value(shape.half)
    ask_for(arenas.cache, later, step, steps, shape, shape.k_codec)
    if value(shape.v_codec) > CODEC_BF16:  # codes are asked for by nobody else
        ask_for(arenas.cache, v, step, steps, shape, shape.v_codec)


@inline
def write_scores_two(arenas, head, first, last, q, scores, shape, rows):
    """Scores of blocks ``first`` to ``last`` - 1, [rows][256] at ``scores``.

    Even and odd dims are summed apart, then added. Two blocks are done at a time, so that each number of a query is
    fetched once for both; what is read some blocks later is asked for meanwhile.
    """
    stride = value(shape.dim) * 4
    for b in range(first, last, 2):
        other = min(b + 1, last - 1)
        block_a, block_b = arenas.table[head.blocks + b], arenas.table[head.blocks + other]
        k_a, k_b = head.k + block_a * head.k_block, head.k + block_b * head.k_block
        later_a, later_b = after_keys(arenas, head, b, first, last), after_keys(arenas, head, b + 1, first, last)
        v_a, v_b = head.v + block_a * head.v_block, head.v + block_b * head.v_block
        even_a, odd_a = zero_f32(rows, LANES), zero_f32(rows, LANES)
        even_b, odd_b = zero_f32(rows, LANES), zero_f32(rows, LANES)
        for d in range(0, value(shape.dim), 2):
            ask_meanwhile(arenas, later_a, v_a, d // 2, shape)
            ask_meanwhile(arenas, later_b, v_b, d // 2, shape)
            a_even, a_odd = load_keys(arenas.cache, k_a, d, shape)
            b_even, b_odd = load_keys(arenas.cache, k_b, d, shape)
            q_even = splat_rows_f32(arenas.work, q + d * 4, stride, rows, LANES)
            even_a, even_b = fma(q_even, a_even, even_a), fma(q_even, b_even, even_b)
            q_odd = splat_rows_f32(arenas.work, q + d * 4 + 4, stride, rows, LANES)
            odd_a, odd_b = fma(q_odd, a_odd, odd_a), fma(q_odd, b_odd, odd_b)
        store_rows(arenas.work, scores + b % SPAN_BLOCKS * 64, SCORE_BYTES, add(even_a, odd_a))
        store_rows(arenas.work, scores + other % SPAN_BLOCKS * 64, SCORE_BYTES, add(even_b, odd_b))


@inline
def write_block_by_block(arenas, head, first, last, q, scores, shape, rows, scores_of):
    """Scores of blocks ``first`` to ``last`` - 1, [rows][256] at ``scores``, a block at a time: of few registers."""
    for b in range(first, last):
        block = arenas.table[head.blocks + b]
        k, v = head.k + block * head.k_block, head.v + block * head.v_block
        later = after_keys(arenas, head, b, first, last)
        found = scores_of(arenas, q, k, later, v, shape, rows)
        store_rows(arenas.work, scores + b % SPAN_BLOCKS * 64, SCORE_BYTES, found)


@inline
def scores_of_block(arenas, q, k, later, v, shape, rows):
    """[rows, 16] scores of the block at ``k``, first by its even dims and then by its odd ones."""
    stride = value(shape.dim) * 4
    even, odd = zero_f32(rows, LANES), zero_f32(rows, LANES)
    for d in range(0, value(shape.dim), 2):
        ask_meanwhile(arenas, later, v, d // 2, shape)
        keys = load_keys(arenas.cache, k, d, shape)[0]
        even = fma(splat_rows_f32(arenas.work, q + d * 4, stride, rows, LANES), keys, even)
    even = settle(even)
    for d in range(0, value(shape.dim), 2):
        keys = load_keys(arenas.cache, k, d, shape)[1]
        odd = fma(splat_rows_f32(arenas.work, q + d * 4 + 4, stride, rows, LANES), keys, odd)
    return add(even, odd)


@inline
def write_scores_one(arenas, head, first, last, q, scores, shape, rows):
    """The same a block at a time."""
    write_block_by_block(arenas, head, first, last, q, scores, shape, rows, scores_of_block)


write_scores: Any = write_scores_two if HAS_TWO_BLOCKS else write_scores_one


@inline
def load_value(cache, v, t, shape, dims):
    """``dims`` dims of the value [D] of the token at position ``t`` of a block."""
    return load_f32(cache, v + t % BLOCK_TOKENS * value(shape.v_dim) * 4, dims)


@inline
def shares_of(arenas, scores, t, rows, dims):
    """The queries' softmax weights of the token at position ``t``, in every lane."""
    return splat_rows_f32(arenas.work, scores + t % SPAN_TOKENS * 4, SCORE_BYTES, rows, dims)


@inline
def add_dims(arenas, head, low, high, scores, values, first, shape, rows, dims):
    """values[r, d] += weight[r, t] * V[t, d] for ``dims`` dims from ``first`` on, of positions ``low`` to ``high`` - 1.

    In ascending order; what is read some blocks later is asked for meanwhile.
    """
    values += first * 4
    acc = load_rows_f32(arenas.work, values, record_bytes(shape), rows, dims)
    parts, t = value(shape.v_dim) // value(dims), low
    part, steps = first // value(dims) * BLOCK_TOKENS, parts * BLOCK_TOKENS
    while t < high:
        v = head.v + arenas.table[head.blocks + t // BLOCK_TOKENS] * head.v_block + first * 4
        end = min(high, (t // BLOCK_TOKENS + 1) * BLOCK_TOKENS)
        k_next = after_values(arenas, head, t // BLOCK_TOKENS, (high - 1) // BLOCK_TOKENS)
        while t < end:
            ask_for(arenas.cache, k_next, part + t % BLOCK_TOKENS, steps, shape, shape.k_codec)
            acc = fma(shares_of(arenas, scores, t, rows, dims), load_value(arenas.cache, v, t, shape, dims), acc)
            t += 1
    store_rows(arenas.work, values, record_bytes(shape), acc)


@called
def add_values(arenas, head, low, high, scores, values, shape, rows):
    """values[r] += weight[r, t] * V[t] for positions ``low`` to ``high`` - 1 of one span."""
    add_by_dims(arenas, head, low, high, scores, values, shape, rows, add_dims)


@inline
def weigh_values(arenas, head, start, end, q, scores, records, shape, rows, joint_rows):
    """Softmax and weighted values of queries ``q``.. over positions ``start`` to ``end`` - 1 of one span.

    Positions that all of them see are done together, ``joint_rows`` at a time; the others query by query, so that a
    token that one of them may not see enters none of its products.
    """
    first, last = start // BLOCK_TOKENS, (end + BLOCK_TOKENS - 1) // BLOCK_TOKENS
    soften_rows(arenas, head, first, last, end, q, scores, records, shape, rows, keep_weights)
    joint_low = min(end, max(start, low_of(head, position_of(head, q + value(rows) - 1))))
    joint_high = max(joint_low, min(end, position_of(head, q) + 1))
    add_all_values(
        arenas, head, start, end, joint_low, joint_high, q, scores, records, shape, rows, joint_rows, add_values
    )
