"""One span of attention for some queries: scores, softmax and weighted values, as a KV head's blocks store them.

A span is 256 tokens aligned to absolute positions, and the unit of the softmax: all its scores, one maximum, one exp
pass, one fixed sum tree, then V token by token (``kernels.attention`` walks the spans and merges them). A token that a
query may not see takes part in no product with V, and its score is replaced before the maximum, so that unwritten slots
may hold anything.

A KV head's block in the cache arena: K ``[D/2][16][2]`` (bf16) or ``[D][16]`` (f32), V ``[8][D][2]`` (bf16, two tokens
side by side) or ``[16][D]`` (f32). A query's *record* is (maximum, sum, 56 bytes unused, [D] weighted values), all f32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvist.kernels.elementwise import exp
from kvist.kernels.jit import called, inline
from kvist.kernels.layout import (
    BLOCK_TOKENS,
    LANES,
    SPAN_BLOCKS,
    SPAN_TOKENS,
)
from kvist.kernels.simd import (
    add,
    bf16_even,
    bf16_odd,
    first_lane,
    fma,
    keep_lanes,
    load_f32,
    load_i32,
    load_rows_f32,
    max_lanes,
    maximum,
    prefetch,
    put_f32,
    splat_f32,
    splat_rows_f32,
    static,
    store,
    store_rows,
    sub,
    sum_lanes,
    value,
    zero_f32,
)

F = np.float32
ZERO, LOWEST = F(0), F(-3.0e38)
RECORD_HEAD = 64
SCORE_BYTES = SPAN_TOKENS * 4
CODEC_F32, CODEC_BF16 = 0, 1
CODECS = {"f32": CODEC_F32, "bf16": CODEC_BF16}


class Arenas(NamedTuple):
    """Where everything lies: int64 ``table``, flat uint8 ``cache`` and ``work``."""

    table: Any
    cache: Any
    work: Any


class Head(NamedTuple):
    """One KV head of one layer as one tile of queries sees it.

    ``k`` and ``v`` are offsets of the head in block 0, ``k_block`` and ``v_block`` the distance between blocks,
    ``blocks`` where the sequence's block table starts, ``position`` the tile's first position, ``share`` how many query
    heads use this KV head, ``window`` how many tokens a query sees (0: all), ``last_block`` the tile's last block
    number.
    """

    k: int
    k_block: int
    v: int
    v_block: int
    blocks: int
    position: int
    share: int
    window: int
    last_block: int


class Shape(NamedTuple):
    """Compile-time constants: head dim, and how K and V are stored."""

    dim: Any
    k_codec: Any
    v_codec: Any


@inline
def element_bytes(codec):
    """Bytes of one number of a key or value."""
    return 4 if value(codec) == CODEC_F32 else 2


@inline
def record_bytes(shape):
    """Bytes of a query's record."""
    return RECORD_HEAD + value(shape.dim) * 4


@inline
def position_of(head, q):
    """The position of query ``q`` of a tile; a row's queries stand together."""
    return head.position + q // head.share


@inline
def low_of(head, position):
    """The first position that the query at ``position`` sees."""
    return max(0, position - head.window + 1) if head.window > 0 else 0


@inline
def load_keys(cache, k, d, shape):
    """Dims d and d + 1 of a block's 16 keys, as two vectors."""
    if value(shape.k_codec) == CODEC_BF16:
        pair = load_i32(cache, k + d * 32, LANES)
        return bf16_even(pair), bf16_odd(pair)
    return load_f32(cache, k + d * 64, LANES), load_f32(cache, k + d * 64 + 64, LANES)


@inline
def ask_for(cache, block, d, codec):
    """Ask for what dims d and d + 1 take in a block: a cache line, or two."""
    at = block + d * LANES * element_bytes(codec)
    prefetch(cache, at)
    if value(codec) == CODEC_F32:
        prefetch(cache, at + 64)


@inline
def ask_for_keys(cache, block, pair, shape):
    """Ask for an eighth of a block's keys."""
    size = 2 * value(shape.dim) * element_bytes(shape.k_codec)
    for at in range(0, size, 64):
        prefetch(cache, block + pair * size + at)


@inline
def write_scores(arenas, head, first, last, q, scores, shape, rows):
    """Scores of blocks ``first`` to ``last`` - 1, [rows][256] at ``scores``.

    Even and odd dims are summed apart, then added. Two blocks are done at a time, so that each number of a query is
    fetched once for both; the next two blocks' keys and these blocks' values are asked for meanwhile.
    """
    stride = value(shape.dim) * 4
    for b in range(first, last, 2):
        other = min(b + 1, last - 1)
        block_a, block_b = arenas.table[head.blocks + b], arenas.table[head.blocks + other]
        k_a, k_b = head.k + block_a * head.k_block, head.k + block_b * head.k_block
        v_a, v_b = head.v + block_a * head.v_block, head.v + block_b * head.v_block
        next_a = head.k + arenas.table[head.blocks + min(b + 2, last - 1)] * head.k_block
        next_b = head.k + arenas.table[head.blocks + min(b + 3, last - 1)] * head.k_block
        even_a, odd_a = zero_f32(rows, LANES), zero_f32(rows, LANES)
        even_b, odd_b = zero_f32(rows, LANES), zero_f32(rows, LANES)
        for d in range(0, value(shape.dim), 2):
            ask_for(arenas.cache, next_a, d, shape.k_codec)
            ask_for(arenas.cache, next_b, d, shape.k_codec)
            ask_for(arenas.cache, v_a, d, shape.v_codec)
            ask_for(arenas.cache, v_b, d, shape.v_codec)
            a_even, a_odd = load_keys(arenas.cache, k_a, d, shape)
            b_even, b_odd = load_keys(arenas.cache, k_b, d, shape)
            q_even = splat_rows_f32(arenas.work, q + d * 4, stride, rows, LANES)
            even_a, even_b = fma(q_even, a_even, even_a), fma(q_even, b_even, even_b)
            q_odd = splat_rows_f32(arenas.work, q + d * 4 + 4, stride, rows, LANES)
            odd_a, odd_b = fma(q_odd, a_odd, odd_a), fma(q_odd, b_odd, odd_b)
        store_rows(arenas.work, scores + b % SPAN_BLOCKS * 64, SCORE_BYTES, add(even_a, odd_a))
        store_rows(arenas.work, scores + other % SPAN_BLOCKS * 64, SCORE_BYTES, add(even_b, odd_b))


@called
def softmax_row(work, scores, record, first, last, low, high):
    """Turn one query's scores of blocks ``first`` to ``last`` - 1 into exp(score - maximum).

    The query sees positions ``low`` to ``high`` - 1. Writes maximum and sum to the record.
    """
    is_edge = low > first * BLOCK_TOKENS or high < last * BLOCK_TOKENS
    largest = splat_f32(LOWEST, LANES)
    for b in range(first, last):
        s = load_f32(work, scores + b % SPAN_BLOCKS * 64, LANES)
        if is_edge:
            s = keep_lanes(s, b * BLOCK_TOKENS, low, high, LOWEST)
        largest = maximum(s, largest)
    top = splat_f32(max_lanes(largest), LANES)
    total = zero_f32(1, LANES)
    for b in range(first, last):
        at = scores + b % SPAN_BLOCKS * 64
        p = exp(sub(load_f32(work, at, LANES), top))
        if is_edge:
            p = keep_lanes(p, b * BLOCK_TOKENS, low, high, ZERO)
        total = add(total, p)
        store(work, at, p)
    put_f32(work, record, first_lane(top))
    put_f32(work, record + 4, sum_lanes(total))


@inline
def load_values(cache, v, pair, shape):
    """Values [D] of tokens 2 * pair and 2 * pair + 1 of a block."""
    size = value(shape.dim) * element_bytes(shape.v_codec)
    if value(shape.v_codec) == CODEC_BF16:
        both = load_i32(cache, v + pair * 2 * size, shape.dim)
        return bf16_even(both), bf16_odd(both)
    return load_f32(cache, v + pair * 2 * size, shape.dim), load_f32(cache, v + (pair * 2 + 1) * size, shape.dim)


@inline
def shares_of(arenas, scores, t, shape, rows):
    """The queries' softmax weights of the token at position ``t``, in every lane."""
    return splat_rows_f32(arenas.work, scores + t % SPAN_TOKENS * 4, SCORE_BYTES, rows, shape.dim)


@called
def add_values(arenas, head, low, high, scores, values, shape, rows):
    """values[r] += weight[r, t] * V[t] for positions ``low`` to ``high`` - 1 of one span, in ascending order.

    The next span's keys are asked for meanwhile, so that memory never idles.
    """
    acc = load_rows_f32(arenas.work, values, record_bytes(shape), rows, shape.dim)
    t = low
    while t < high:
        v = head.v + arenas.table[head.blocks + t // BLOCK_TOKENS] * head.v_block
        end = min(high, (t // BLOCK_TOKENS + 1) * BLOCK_TOKENS)
        if t % 2 == 1:
            acc = fma(
                shares_of(arenas, scores, t, shape, rows),
                load_values(arenas.cache, v, t % BLOCK_TOKENS // 2, shape)[1],
                acc,
            )
            t += 1
        k_next = (
            head.k + arenas.table[head.blocks + min(t // BLOCK_TOKENS + SPAN_BLOCKS, head.last_block)] * head.k_block
        )
        while t + 2 <= end:
            pair = t % BLOCK_TOKENS // 2
            ask_for_keys(arenas.cache, k_next, pair, shape)
            even, odd = load_values(arenas.cache, v, pair, shape)
            acc = fma(shares_of(arenas, scores, t, shape, rows), even, acc)
            acc = fma(shares_of(arenas, scores, t + 1, shape, rows), odd, acc)
            t += 2
        if t < end:
            acc = fma(
                shares_of(arenas, scores, t, shape, rows),
                load_values(arenas.cache, v, t % BLOCK_TOKENS // 2, shape)[0],
                acc,
            )
            t += 1
    store_rows(arenas.work, values, record_bytes(shape), acc)


@inline
def weigh_values(arenas, head, start, end, q, scores, records, shape, rows, joint_rows):
    """Weighted values of queries ``q``.. over positions ``start`` to ``end`` - 1 of one span.

    Positions that all of them see are done together, ``joint_rows`` at a time; the others query by query, so that a
    token that one of them may not see enters none of its products.
    """
    joint_low = min(end, max(start, low_of(head, position_of(head, q + value(rows) - 1))))
    joint_high = max(joint_low, min(end, position_of(head, q) + 1))
    for r in range(value(rows)):
        values, position = records + r * record_bytes(shape) + RECORD_HEAD, position_of(head, q + r)
        store(arenas.work, values, zero_f32(1, shape.dim))
        low, high = max(start, low_of(head, position)), min(joint_low, position + 1)
        if low < high:
            add_values(arenas, head, low, high, scores + r * SCORE_BYTES, values, shape, static(1))
    for r in range(0, value(rows), value(joint_rows)):
        values = records + r * record_bytes(shape) + RECORD_HEAD
        add_values(arenas, head, joint_low, joint_high, scores + r * SCORE_BYTES, values, shape, joint_rows)
    for r in range(value(rows)):
        values, position = records + r * record_bytes(shape) + RECORD_HEAD, position_of(head, q + r)
        low, high = max(joint_high, low_of(head, position)), min(end, position + 1)
        if low < high:
            add_values(arenas, head, low, high, scores + r * SCORE_BYTES, values, shape, static(1))
