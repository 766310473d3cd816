"""How much attention each slot got: a tally of softmax weights in whole numbers, for retention that goes by it.

Scores are computed once more, span by span, as attention does, then a query's weights over all that it sees, and each
is rounded to a multiple of 2^-24. Sums of those are exact, so no division into passes, chunks or threads changes them.
A thread adds to a tally of its own at the end of the pass's table; whoever ran the pass adds the threads' up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvist.kernels import target
from kvist.kernels.attention import SCORES, VALUES
from kvist.kernels.caps import cap_scores
from kvist.kernels.elementwise import exp
from kvist.kernels.jit import SIGNATURE, called, inline, kernel
from kvist.kernels.layout import (
    BLOCK_TOKENS,
    BLOCKS,
    GROUP_FIELDS,
    GROUPS,
    LANES,
    SCRATCH,
    SCRATCH_STRIDE,
    SPAN_BLOCKS,
    SPAN_TOKENS,
    TALLIES,
    TALLY_FIELDS,
    TALLY_STRIDE,
    fields,
)
from kvist.kernels.simd import (
    add,
    add_i32,
    get_f32,
    get_i32,
    keep_lanes,
    load_f32,
    load_i32,
    max_lanes,
    maximum,
    mul,
    rint,
    splat_f32,
    splat_i32,
    static,
    store,
    sub,
    sum_lanes,
    to_i32,
    value,
    zero_f32,
)
from kvist.kernels.spans import LOWEST, SCORE_BYTES, Arenas, Shape

ONE = np.float32(1 << 24)
"""What a weight of 1 counts."""

MAX_QUERIES = 127
"""Queries of a chunk: so many weights of 1 fit an int32."""

TALLY = fields("group kv_heads share q q_head k k_head k_block v v_head v_block cap")


class Scored(NamedTuple):
    """One KV head of one layer as ``write_scores`` needs it (``kernels.spans.Head``), and how many heads share it."""

    k: int
    k_block: int
    v: int
    v_block: int
    blocks: int
    share: int


@called
def add_weights(work, scores, sums, num_spans, stride, high):
    """Add one query's weights to the int32 ``sums``; its scores of span s are at ``scores + s * stride``.

    It sees slots 0 to ``high`` - 1.
    """
    num_blocks = (high + BLOCK_TOKENS - 1) // BLOCK_TOKENS
    largest = splat_f32(LOWEST, LANES)
    for b in range(num_blocks):
        at = scores + b // SPAN_BLOCKS * stride + b % SPAN_BLOCKS * 64
        largest = maximum(keep_lanes(load_f32(work, at, LANES), b * BLOCK_TOKENS, 0, high, LOWEST), largest)
    top = splat_f32(max_lanes(largest), LANES)
    total = zero_f32(1, LANES)
    for b in range(num_blocks):
        at = scores + b // SPAN_BLOCKS * stride + b % SPAN_BLOCKS * 64
        p = keep_lanes(exp(sub(load_f32(work, at, LANES), top)), b * BLOCK_TOKENS, 0, high, np.float32(0))
        total = add(total, p)
        store(work, at, p)
    factor = splat_f32(ONE / sum_lanes(total), LANES)
    for b in range(num_blocks):
        at = scores + b // SPAN_BLOCKS * stride + b % SPAN_BLOCKS * 64
        weight = to_i32(rint(mul(load_f32(work, at, LANES), factor)))
        store(work, sums + b * 64, add_i32(load_i32(work, sums + b * 64, LANES), weight))


@called
def tally_row(arenas, head, slot, query, scores, sums, shape, rows):
    """Add the weights of the queries of the row in ``slot``, ``rows`` at a time."""
    num_spans, stride = slot // SPAN_TOKENS + 1, value(rows) * SCORE_BYTES
    for first in range(0, head.share, value(rows)):
        at = query + first * value(shape.dim) * 4
        for span in range(num_spans):
            end = min((span + 1) * SPAN_BLOCKS, slot // BLOCK_TOKENS + 1)
            shape.write_scores(arenas, head, span * SPAN_BLOCKS, end, at, scores + span * stride, shape, rows)
            if value(shape.is_capped):
                cap_scores(arenas.work, scores + span * stride, span * SPAN_BLOCKS, end, shape.cap, rows)
        for r in range(value(rows)):
            add_weights(arenas.work, scores + r * SCORE_BYTES, sums, num_spans, stride, slot + 1)


@inline
def tally(chunk, thread, line, program, arenas, shape, rows):
    """A chunk is some rows of a sequence and a KV head: their queries' weights are added to the thread's tally."""
    table, kv_heads, share = arenas.table, program[line, TALLY.kv_heads], program[line, TALLY.share]
    kv_head, unit = chunk % kv_heads, table[TALLIES] + chunk // kv_heads * TALLY_FIELDS
    first_row, count, first_slot = table[unit], table[unit + 1], table[unit + 2]
    k = program[line, TALLY.k] + kv_head * program[line, TALLY.k_head]
    v = program[line, TALLY.v] + kv_head * program[line, TALLY.v_head]
    blocks = table[table[GROUPS + GROUP_FIELDS * program[line, TALLY.group] + BLOCKS] + first_row]
    head = Scored(k, program[line, TALLY.k_block], v, program[line, TALLY.v_block], blocks, share)
    sums, end = table[SCRATCH] + thread * table[SCRATCH_STRIDE], first_slot + count
    scores = sums + ((end - 1) // SPAN_TOKENS + 1) * SPAN_TOKENS * 4
    for s in range(0, end, LANES):
        store(arenas.work, sums + s * 4, splat_i32(np.int32(0), LANES))
    row_bytes = share * value(shape.dim) * 4
    queries = program[line, TALLY.q] + kv_head * program[line, TALLY.q_head] + first_row * row_bytes
    for row in range(count):
        tally_row(arenas, head, first_slot + row, queries + row * row_bytes, scores, sums, shape, rows)
    into = table[unit + 3] + program[line, TALLY.group] * table[unit + 4] + thread * table[TALLY_STRIDE]
    for s in range(end):
        table[into + s] += np.int64(get_i32(arenas.work, sums + s * 4))


def tally_kernel(dim: int, k_codec: int, v_codec: int, share: int, is_capped: int = 0) -> Any:
    """The kernel for one head dim, one way of storing K and V, and ``share`` query heads a KV head."""
    rows, half, write_scores, weigh_values = joint_rows(share), dim // 2, SCORES[k_codec], VALUES[v_codec]

    @kernel(SIGNATURE)
    def run_tally(chunk, thread, line, program, table, weights, cache, work):
        shape = Shape(
            static(dim),
            static(half),
            static(dim),
            static(half),
            static(k_codec),
            static(v_codec),
            write_scores,
            weigh_values,
            static(is_capped),
            get_f32(weights, program[line, TALLY.cap]) if is_capped else np.float32(0),
        )
        arenas = Arenas(table, cache, work)
        tally(chunk, thread, line, program, arenas, shape, static(rows))

    return run_tally


def joint_rows(share: int) -> int:
    """Queries of a row whose scores are computed together."""
    return max(n for n in range(1, share + 1) if share % n == 0 and n <= target.current().query_rows)


def unit_rows(share: int) -> int:
    """Rows of a chunk: so few that the weights of their queries add up to less than an int32."""
    return max(1, min(8, MAX_QUERIES // share))


def scratch_bytes(num_spans: int, share: int) -> int:
    """Scratch that one thread needs for sequences of ``num_spans`` spans: sums, and the scores of some queries."""
    return num_spans * (SPAN_TOKENS * 4 + joint_rows(share) * SCORE_BYTES)
