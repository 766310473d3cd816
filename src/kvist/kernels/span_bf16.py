"""Scores and weighted values of one span where keys or values are bf16 numbers, two by two.

A KV head's block in the cache arena: K ``[D/2][16][2]``, V ``[8][D][2]``, two tokens side by side. Queries are rounded
to bf16 as well, and so are softmax weights when they meet values: products are exact in f32, and each is added with
one rounding, of a pair the second one first. Newer processors have an instruction for that (``simd.dot2``), and there
queries and weights stand packed, two by two; elsewhere they stand as f32 numbers, and two fmas give the same bits.

Pairs of tokens are aligned, and enter in ascending order. Of a pair of which a query may see one token only, the other
one counts as 0, with a weight of 0.
"""

from __future__ import annotations

from typing import Any

from kvist.kernels import target
from kvist.kernels.jit import called, inline
from kvist.kernels.layout import BLOCK_TOKENS, LANES, SPAN_BLOCKS, SPAN_TOKENS
from kvist.kernels.simd import (
    bf16_even,
    bf16_odd,
    bf16_of,
    bf16_to_f32,
    dot2,
    f32_to_bf16,
    fma,
    high_halves,
    load_i32,
    load_rows_f32,
    low_halves,
    splat_rows_f32,
    splat_rows_i32,
    store,
    store_rows,
    value,
    zero_f32,
)
from kvist.kernels.span_floats import HAS_TWO_BLOCKS, after_keys, after_values, ask_meanwhile, write_block_by_block
from kvist.kernels.spans import (
    SCORE_BYTES,
    add_all_values,
    add_by_dims,
    ask_for,
    low_of,
    position_of,
    record_bytes,
    soften_rows,
)


@inline
def fetch_packed(work, at, pair, stride, rows, lanes):
    """Pair number ``pair`` of rows at ``at``, in every lane."""
    return splat_rows_i32(work, at + pair * 4, stride, rows, lanes)


@inline
def fetch_apart(work, at, pair, stride, rows, lanes):
    """The same, its two numbers by themselves."""
    even = splat_rows_f32(work, at + pair * 8, stride, rows, lanes)
    return even, splat_rows_f32(work, at + pair * 8 + 4, stride, rows, lanes)


@inline
def times_packed(acc, pairs, fetched):
    """Add the products of stored pairs with a fetched one, the second numbers' first."""
    return dot2(acc, pairs, fetched)


@inline
def times_apart(acc, pairs, fetched):
    """The same."""
    return fma(bf16_even(pairs), fetched[0], fma(bf16_odd(pairs), fetched[1], acc))


@inline
def put_packed(work, at, numbers):
    """Write the numbers, rounded, as they are fetched; they take the first half of their room."""
    store(work, at, f32_to_bf16(numbers))


@inline
def put_apart(work, at, numbers):
    """The same, as f32 numbers."""
    store(work, at, bf16_to_f32(f32_to_bf16(numbers)))


IS_PACKED = target.has_dot2()
fetch: Any = fetch_packed if IS_PACKED else fetch_apart
times: Any = times_packed if IS_PACKED else times_apart
put_rounded: Any = put_packed if IS_PACKED else put_apart


@inline
def write_scores_two(arenas, head, first, last, q, scores, shape, rows):
    """Scores of blocks ``first`` to ``last`` - 1, [rows][256] at ``scores``, two blocks at a time.

    What is read some blocks later is asked for meanwhile.
    """
    stride = value(shape.dim) * 4
    for b in range(first, last, 2):
        other = min(b + 1, last - 1)
        block_a, block_b = arenas.table[head.blocks + b], arenas.table[head.blocks + other]
        k_a, k_b = head.k + block_a * head.k_block, head.k + block_b * head.k_block
        later_a, later_b = after_keys(arenas, head, b, first, last), after_keys(arenas, head, b + 1, first, last)
        v_a, v_b = head.v + block_a * head.v_block, head.v + block_b * head.v_block
        sum_a, sum_b = zero_f32(rows, LANES), zero_f32(rows, LANES)
        for pair in range(value(shape.half)):
            ask_meanwhile(arenas, later_a, v_a, pair, shape)
            ask_meanwhile(arenas, later_b, v_b, pair, shape)
            both = fetch(arenas.work, q, pair, stride, rows, LANES)
            sum_a = times(sum_a, load_i32(arenas.cache, k_a + pair * 64, LANES), both)
            sum_b = times(sum_b, load_i32(arenas.cache, k_b + pair * 64, LANES), both)
        store_rows(arenas.work, scores + b % SPAN_BLOCKS * 64, SCORE_BYTES, sum_a)
        store_rows(arenas.work, scores + other % SPAN_BLOCKS * 64, SCORE_BYTES, sum_b)


@inline
def scores_of_block(arenas, q, k, later, v, shape, rows):
    """[rows, 16] scores of the block at ``k``."""
    total = zero_f32(rows, LANES)
    for pair in range(value(shape.half)):
        ask_meanwhile(arenas, later, v, pair, shape)
        both = fetch(arenas.work, q, pair, value(shape.dim) * 4, rows, LANES)
        total = times(total, load_i32(arenas.cache, k + pair * 64, LANES), both)
    return total


@inline
def write_scores_one(arenas, head, first, last, q, scores, shape, rows):
    """The same a block at a time."""
    write_block_by_block(arenas, head, first, last, q, scores, shape, rows, scores_of_block)


write_scores: Any = write_scores_two if HAS_TWO_BLOCKS else write_scores_one


@inline
def keep_packed(work, scores, b, weights):
    """Write the softmax weights of block ``b``, rounded, as they are fetched: over scores that were read already."""
    store(work, scores + b % SPAN_BLOCKS * 32, bf16_of(weights))


@inline
def keep_apart(work, scores, b, weights):
    """The same, as f32 numbers."""
    store(work, scores + b % SPAN_BLOCKS * 64, bf16_to_f32(bf16_of(weights)))


keep_rounded: Any = keep_packed if IS_PACKED else keep_apart


@inline
def shares_of(arenas, scores, t, rows, dims):
    """The queries' softmax weights of the tokens at positions ``t``, which is even, and ``t`` + 1, in every lane."""
    return fetch(arenas.work, scores, t % SPAN_TOKENS // 2, SCORE_BYTES, rows, dims)


@inline
def add_dims(arenas, head, low, high, scores, values, first, shape, rows, dims):
    """values[r, d] += weight[r, t] * V[t, d] for ``dims`` dims from ``first`` on, of positions ``low`` to ``high`` - 1.

    Pair by pair; what is read some blocks later is asked for meanwhile.
    """
    values += first * 4
    acc = load_rows_f32(arenas.work, values, record_bytes(shape), rows, dims)
    size, t = value(shape.v_dim) * 4, low // 2 * 2
    part, steps = first // value(dims) * 8, value(shape.v_dim) // value(dims) * 8
    while t < high:
        block = t // BLOCK_TOKENS
        v = head.v + arenas.table[head.blocks + block] * head.v_block + first * 4
        end = min(high, (block + 1) * BLOCK_TOKENS)
        k_next = after_values(arenas, head, block, (high - 1) // BLOCK_TOKENS)
        if t < low:
            seen = high_halves(load_i32(arenas.cache, v + t % BLOCK_TOKENS // 2 * size, dims))
            acc = times(acc, seen, shares_of(arenas, scores, t, rows, dims))
            t += 2
        number = block % SPAN_BLOCKS * (BLOCK_TOKENS // 2)
        for pair in range((t - block * BLOCK_TOKENS) // 2, (end - block * BLOCK_TOKENS) // 2):
            ask_for(arenas.cache, k_next, part + pair, steps, shape, shape.k_codec)
            both = load_i32(arenas.cache, v + pair * size, dims)
            acc = times(acc, both, fetch(arenas.work, scores, number + pair, SCORE_BYTES, rows, dims))
        t = max(t, end // 2 * 2)
        if t < end:
            seen = low_halves(load_i32(arenas.cache, v + t % BLOCK_TOKENS // 2 * size, dims))
            acc = times(acc, seen, shares_of(arenas, scores, t, rows, dims))
            t += 2
    store_rows(arenas.work, values, record_bytes(shape), acc)


@called
def add_values(arenas, head, low, high, scores, values, shape, rows):
    """values[r] += weight[r, t] * V[t] for positions ``low`` to ``high`` - 1 of one span."""
    add_by_dims(arenas, head, low, high, scores, values, shape, rows, add_dims)


@inline
def weigh_values(arenas, head, start, end, q, scores, records, shape, rows, joint_rows):
    """Softmax and weighted values of queries ``q``.. over positions ``start`` to ``end`` - 1 of one span.

    Whole pairs that all of them see are done together, ``joint_rows`` at a time, the others query by query.
    """
    first, last = start // BLOCK_TOKENS, (end + BLOCK_TOKENS - 1) // BLOCK_TOKENS
    soften_rows(arenas, head, first, last, end, q, scores, records, shape, rows, keep_rounded)
    joint_low = (max(start, low_of(head, position_of(head, q + value(rows) - 1))) + 1) // 2 * 2
    joint_high = max(joint_low, min(end, position_of(head, q) + 1) // 2 * 2)
    add_all_values(
        arenas, head, start, end, joint_low, joint_high, q, scores, records, shape, rows, joint_rows, add_values
    )
