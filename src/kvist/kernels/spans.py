"""What the kernels of one span of attention share: where things stand, the softmax, and what memory is asked for.

A span is 256 tokens aligned to absolute positions, and the unit of the softmax: all its scores, one maximum, one exp
pass, one fixed sum tree, then the weighted values (``kernels.attention`` walks the spans and merges them). A token that
a query may not see takes part in no product with V, or its weight there is the integer 0, and its score is replaced
before the maximum, so that unwritten slots may hold anything.

``span_floats`` and ``span_codes`` have what differs by codec. A query's *record* is (maximum, sum, 56 bytes for what a
codec notes, [D] weighted values), f32 all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvist.kernels.elementwise import exp
from kvist.kernels.jit import called, inline
from kvist.kernels.layout import (
    BLOCK_TOKENS,
    LANES,
    SINKS,
    SPAN_BLOCKS,
    SPAN_TOKENS,
    WINDOWS,
)
from kvist.kernels.simd import (
    add,
    first_lane,
    keep_lanes,
    load_f32,
    load_rows_f32,
    max_lanes,
    maximum,
    prefetch,
    put_f32,
    row,
    splat_f32,
    static,
    store,
    sub,
    sum_lanes,
    value,
    zero_f32,
)

F = np.float32
ZERO, LOWEST = F(0), F(-3.0e38)
RECORD_HEAD = 64
WEIGHTS = SPAN_TOKENS * 4
"""Where a query's softmax weights as bytes start, after its scores."""
SCORE_BYTES = WEIGHTS + SPAN_TOKENS
LINE = 64
"""Bytes of a cache line."""
SCALE_BYTES = SPAN_TOKENS * 4
"""Room for the scales of a span's values, after the records of a group of queries."""
AT_ONCE = 4
"""Blocks of scores whose exp is taken together, so that none waits for the steps of another."""
CODEC_F32, CODEC_BF16, CODEC_INT8, CODEC_INT4 = range(4)
CODEC_NONE = 4
"""Of values that aren't stored apart: of a latent, which is key and value."""
CODECS = {"f32": CODEC_F32, "bf16": CODEC_BF16, "int8": CODEC_INT8, "int4": CODEC_INT4}


class Arenas(NamedTuple):
    """Where everything lies: int64 ``table``, flat uint8 ``cache`` and ``work``."""

    table: Any
    cache: Any
    work: Any


class Head(NamedTuple):
    """One KV head of one layer as one tile of queries sees it.

    ``k`` and ``v`` are offsets of the head in block 0, ``k_block`` and ``v_block`` the distance between blocks,
    ``blocks`` where the sequence's block table starts, ``position`` the tile's first position, ``share`` how many query
    heads use this KV head, ``window`` how many tokens a query sees (0: all) of those after the first ``sinks``,
    ``last_block`` the tile's last block number. ``next_k``, ``next_blocks``, ``next_last``: what keys the thread meets
    after this head's, to be asked for in time: their offset, where their block ids start, and the last of these.
    """

    k: int
    k_block: int
    v: int
    v_block: int
    blocks: int
    position: int
    share: int
    window: int
    sinks: int
    last_block: int
    next_k: int
    next_blocks: int
    next_last: int


class Shape(NamedTuple):
    """Compile-time constants: a key's width and its half, a value's, how K and V are stored, and the pieces for that.

    ``panel`` is how many dims of values are added up together; ``write_scores`` and ``weigh_values`` are of
    ``span_floats`` or ``span_codes``. Where ``is_capped``, scores are capped at ``cap``, which is no constant.
    """

    dim: Any
    half: Any
    v_dim: Any
    panel: Any
    k_codec: Any
    v_codec: Any
    write_scores: Any
    weigh_values: Any
    is_capped: Any
    cap: Any


@inline
def stored_bytes(shape, codec):
    """Bytes of a block's keys or values of one KV head, about."""
    if value(codec) == CODEC_NONE:
        return 0
    if value(codec) == CODEC_F32:
        return BLOCK_TOKENS * value(shape.dim) * 4
    if value(codec) == CODEC_BF16:
        return BLOCK_TOKENS * value(shape.dim) * 2
    if value(codec) == CODEC_INT8:
        return BLOCK_TOKENS * (value(shape.dim) + 2)
    return BLOCK_TOKENS * (value(shape.half) + 4)


@inline
def ask_for(cache, block, step, steps, shape, codec):
    """Ask for one of ``steps`` parts of a block, each of its cache lines once; what is left over comes first."""
    lines = (stored_bytes(shape, codec) + LINE - 1) // LINE
    each = lines // steps
    for line in range(each):
        prefetch(cache, block + (step * each + line) * LINE)
    if step == 0:
        for line in range(steps * each, lines):
            prefetch(cache, block + line * LINE)


@inline
def keys_to_come(arenas, head, b):
    """Where the keys stand that are asked for while block ``b``'s values are added: a span further, or the next head's.

    So memory never idles.
    """
    block = b + SPAN_BLOCKS
    if block <= head.last_block:
        return head.k + arenas.table[head.blocks + block] * head.k_block
    return head.next_k + arenas.table[head.next_blocks + min(b % SPAN_BLOCKS, head.next_last)] * head.k_block


@inline
def record_bytes(shape):
    """Bytes of a query's record."""
    return RECORD_HEAD + value(shape.v_dim) * 4


@inline
def position_of(head, q):
    """The position of query ``q`` of a tile; a row's queries stand together."""
    return head.position + q // head.share


@inline
def low_of(head, position):
    """The first position, sinks aside, that the query at ``position`` sees."""
    return max(head.sinks, position - head.window + 1) if head.window > 0 else 0


@inline
def window_of(table, row, own):
    """How many tokens a row's query sees: the layer's ``own`` window or its sequence's, the smaller one; 0: all."""
    kept = table[table[WINDOWS] + row] if table[WINDOWS] else 0
    return min(own, kept) if own > 0 and kept > 0 else max(own, kept)


@inline
def sinks_of(table, row, own):
    """How many first tokens it sees besides; none in layers with a window of their own."""
    return table[table[SINKS] + row] if table[SINKS] and own <= 0 else 0


@inline
def keep_weights(work, scores, b, weights):
    """Write the softmax weights of block ``b`` over its scores, as they are."""
    store(work, scores + b % SPAN_BLOCKS * 64, weights)


@called
def softmax_row(work, scores, record, first, last, low, high, keep):
    """Turn one query's scores of blocks ``first`` to ``last`` - 1 into exp(score - maximum).

    The query sees positions ``low`` to ``high`` - 1. ``keep`` writes a block's weights. Writes maximum and sum to the
    record.
    """
    whole_first, whole_last = max(first, (low + BLOCK_TOKENS - 1) // BLOCK_TOKENS), min(last, high // BLOCK_TOKENS)
    largest, b = splat_f32(LOWEST, LANES), first
    while b < last:
        if whole_first <= b and b + AT_ONCE <= whole_last:
            s = load_rows_f32(work, scores + b % SPAN_BLOCKS * 64, 64, AT_ONCE, LANES)
            pairs = maximum(row(s, 0), row(s, 1)), maximum(row(s, 2), row(s, 3))
            largest = maximum(maximum(pairs[0], pairs[1]), largest)
            b += AT_ONCE
        else:
            s = load_f32(work, scores + b % SPAN_BLOCKS * 64, LANES)
            largest = maximum(keep_lanes(s, b * BLOCK_TOKENS, low, high, LOWEST), largest)
            b += 1
    top = splat_f32(max_lanes(largest), LANES)
    total, b = zero_f32(1, LANES), first
    while b < last:
        at = scores + b % SPAN_BLOCKS * 64
        if whole_first <= b and b + AT_ONCE <= whole_last:
            p = exp(sub(load_rows_f32(work, at, 64, AT_ONCE, LANES), top))
            total = add(add(add(add(total, row(p, 0)), row(p, 1)), row(p, 2)), row(p, 3))
            keep(work, scores, b, row(p, 0))
            keep(work, scores, b + 1, row(p, 1))
            keep(work, scores, b + 2, row(p, 2))
            keep(work, scores, b + 3, row(p, 3))
            b += AT_ONCE
        else:
            p = keep_lanes(exp(sub(load_f32(work, at, LANES), top)), b * BLOCK_TOKENS, low, high, ZERO)
            total = add(total, p)
            keep(work, scores, b, p)
            b += 1
    put_f32(work, record, first_lane(top))
    put_f32(work, record + 4, sum_lanes(total))


@inline
def soften_rows(arenas, head, first, last, end, q, scores, records, shape, rows, keep):
    """Turn the scores of queries ``q``.. of blocks ``first`` to ``last`` - 1, up to position ``end``, into weights."""
    for r in range(value(rows)):
        position = position_of(head, q + r)
        low, high = low_of(head, position), min(end, position + 1)
        record = records + r * record_bytes(shape)
        softmax_row(arenas.work, scores + r * SCORE_BYTES, record, first, last, low, high, keep)


@inline
def add_by_dims(arenas, head, low, high, scores, values, shape, rows, add_dims):
    """Add weighted values a panel of dims at a time, so that the sums of several queries stay in registers."""
    if value(rows) == 1:
        add_dims(arenas, head, low, high, scores, values, 0, shape, rows, shape.v_dim)
    else:
        for first in range(0, value(shape.v_dim), value(shape.panel)):
            add_dims(arenas, head, low, high, scores, values, first, shape, rows, shape.panel)


@inline
def add_all_values(
    arenas, head, start, end, joint_low, joint_high, q, scores, records, shape, rows, joint_rows, add_values
):
    """Weighted values of queries ``q``.. over positions ``start`` to ``end`` - 1 of one span, by ``add_values``.

    All of them see positions ``joint_low`` to ``joint_high`` - 1, which are done together, ``joint_rows`` at a time;
    the others query by query, so that a token that one of them may not see enters none of its products.
    """
    for r in range(value(rows)):
        values, position = records + r * record_bytes(shape) + RECORD_HEAD, position_of(head, q + r)
        store(arenas.work, values, zero_f32(1, shape.v_dim))
        low, high = max(start, low_of(head, position)), min(joint_low, end, position + 1)
        if low < high:
            add_values(arenas, head, low, high, scores + r * SCORE_BYTES, values, shape, static(1))
    if joint_low < joint_high:
        for r in range(0, value(rows), value(joint_rows)):
            values = records + r * record_bytes(shape) + RECORD_HEAD
            add_values(arenas, head, joint_low, joint_high, scores + r * SCORE_BYTES, values, shape, joint_rows)
    for r in range(value(rows)):
        values, position = records + r * record_bytes(shape) + RECORD_HEAD, position_of(head, q + r)
        low, high = max(joint_high, low_of(head, position)), min(end, position + 1)
        if low < high:
            add_values(arenas, head, low, high, scores + r * SCORE_BYTES, values, shape, static(1))
