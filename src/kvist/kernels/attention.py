"""Attention over blocks: scores, softmax and weighted values by spans of 256 tokens, merged in ascending order.

The span is the unit of the softmax: all its scores, one maximum, one exp pass, one fixed sum tree, then V token by
token. A query's result is one fixed sequence of operations over the tokens it sees, whether a tile walks its spans one
after the other or they are attended apart and merged by ``finish``. A token that a query may not see takes part in no
product with V, and its score is replaced before the maximum, so that unwritten slots may hold anything.

A KV head's block in the cache arena: K ``[D/2][16][2]`` (bf16) or ``[D][16]`` (f32), V ``[8][D][2]`` (bf16, two tokens
side by side) or ``[16][D]`` (f32). A query's *record* is (maximum, sum, 56 bytes unused, [D] weighted values), all f32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvist.kernels import target
from kvist.kernels.elementwise import exp, padded_width, quantise_groups
from kvist.kernels.jit import SIGNATURE, called, inline, kernel
from kvist.kernels.layout import (
    BLOCK_TOKENS,
    GROUP,
    GROUPS,
    LANES,
    NUM_ROWS,
    POSITIONS,
    SCRATCH,
    SCRATCH_STRIDE,
    SPAN_BLOCKS,
    SPAN_STEP,
    SPAN_TOKENS,
    SPANS,
    TILE_FIELDS,
    TILES,
    fields,
)
from kvist.kernels.simd import (
    add,
    bf16_even,
    bf16_odd,
    first_lane,
    fma,
    get_f32,
    keep_lanes,
    load_f32,
    load_i32,
    load_rows_f32,
    max_lanes,
    maximum,
    mul,
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
ZERO, ONE, LOWEST = F(0), F(1), F(-3.0e38)
RECORD_HEAD = 64
SCORE_BYTES = SPAN_TOKENS * 4
CODEC_F32, CODEC_BF16 = 0, 1
CODECS = {"f32": CODEC_F32, "bf16": CODEC_BF16}

AT = fields(
    "group kv_heads share q q_head k k_head k_block v "
    "v_head v_block window out out_stride parts quantised quantised_stride width"
)
FIN = fields("heads chunk_heads out out_stride parts share window quantised quantised_stride width")


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
def quantise_heads(work, at, first, heads, width, out, line, shape):
    """Quantise the columns of some heads of a row; they end at a multiple of 32, or at the row's end."""
    columns = value(shape.dim)
    end = padded_width((first + heads) * columns)
    quantise_groups(work, at, first * columns // GROUP, end // GROUP, padded_width(width), out, line)


@inline
def is_seen(head, span, position):
    """Whether the query at ``position`` sees anything of the span."""
    return span * SPAN_TOKENS <= position and low_of(head, position) < (span + 1) * SPAN_TOKENS


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


@called
def merge(work, into, part, is_first, shape):
    """Merge a span's record into a running one (Milakov and Gimelshein, 2018); the first is copied."""
    if is_first:
        put_f32(work, into, get_f32(work, part))
        put_f32(work, into + 4, get_f32(work, part + 4))
        store(work, into + RECORD_HEAD, load_f32(work, part + RECORD_HEAD, shape.dim))
        return
    old, new = splat_f32(get_f32(work, into), LANES), splat_f32(get_f32(work, part), LANES)
    top = maximum(old, new)
    keep, gain = exp(sub(old, top)), exp(sub(new, top))
    total = fma(splat_f32(get_f32(work, into + 4), LANES), keep, mul(splat_f32(get_f32(work, part + 4), LANES), gain))
    put_f32(work, into, first_lane(top))
    put_f32(work, into + 4, first_lane(total))
    kept = splat_f32(first_lane(keep), shape.dim)
    gained = mul(load_f32(work, part + RECORD_HEAD, shape.dim), splat_f32(first_lane(gain), shape.dim))
    store(work, into + RECORD_HEAD, fma(load_f32(work, into + RECORD_HEAD, shape.dim), kept, gained))


@called
def write_result(work, record, out, shape):
    """Write a record's weighted values over its sum, [D] f32."""
    inverse = splat_f32(ONE / get_f32(work, record + 4), shape.dim)
    store(work, out, mul(load_f32(work, record + RECORD_HEAD, shape.dim), inverse))


@called
def attend_queries(arenas, head, span, q, query, scores, runs, is_apart, shape, rows, joint_rows):
    """Attend one span with queries ``q`` to ``q + rows`` - 1 and merge it into their running records.

    ``query`` is where the first one's vector stands, ``scores`` room for the scores and the span's own records.
    ``is_apart``: this span's records are kept by themselves, for ``finish`` to merge.
    """
    before, after = position_of(head, q), position_of(head, q + value(rows) - 1)
    start, end = max(span * SPAN_TOKENS, low_of(head, before)), min((span + 1) * SPAN_TOKENS, after + 1)
    if start >= end:
        return
    first, last = start // BLOCK_TOKENS, (end + BLOCK_TOKENS - 1) // BLOCK_TOKENS
    record, parts = record_bytes(shape), scores + value(rows) * SCORE_BYTES
    write_scores(arenas, head, first, last, query, scores, shape, rows)
    for r in range(value(rows)):
        position = position_of(head, q + r)
        low, high = low_of(head, position), position + 1
        softmax_row(arenas.work, scores + r * SCORE_BYTES, parts + r * record, first, last, low, high)
    weigh_values(arenas, head, start, end, q, scores, parts, shape, rows, joint_rows)
    for r in range(value(rows)):
        position = position_of(head, q + r)
        if is_seen(head, span, position):
            is_first = is_apart or span == low_of(head, position) // SPAN_TOKENS
            merge(arenas.work, runs + (q + r) * record, parts + r * record, is_first, shape)


@called
def attend_some(arenas, head, span, q, count, queries, scores, runs, is_apart, shape, rows, joint_rows):
    """Attend one span with as many whole groups of ``rows`` queries as are left; returns the next query."""
    while q + value(rows) <= count:
        query = queries + q * value(shape.dim) * 4
        attend_queries(arenas, head, span, q, query, scores, runs, is_apart, shape, rows, joint_rows)
        q += value(rows)
    return q


@inline
def head_of(line, program, table, tile, kv_head, shape):
    """What a tile sees of a KV head of this line's layer."""
    k = program[line, AT.k] + kv_head * program[line, AT.k_head]
    v = program[line, AT.v] + kv_head * program[line, AT.v_head]
    blocks = table[table[GROUPS + 2 * program[line, AT.group] + 1] + table[tile + 3]]
    share, window = program[line, AT.share], program[line, AT.window]
    last_block = (table[tile + 2] + table[tile + 1] - 1) // BLOCK_TOKENS
    return Head(
        k, program[line, AT.k_block], v, program[line, AT.v_block], blocks, table[tile + 2], share, window, last_block
    )


@inline
def attend_span(arenas, head, span, count, queries, scores, runs, is_apart, shape, rows, joint_rows, few, joint_few):
    """Attend one span with all queries of a tile: in the largest groups, then smaller ones, then one by one."""
    q = np.int64(0)
    q = attend_some(arenas, head, span, q, count, queries, scores, runs, is_apart, shape, rows, joint_rows)
    q = attend_some(arenas, head, span, q, count, queries, scores, runs, is_apart, shape, few, joint_few)
    attend_some(arenas, head, span, q, count, queries, scores, runs, is_apart, shape, static(1), static(1))


@inline
def attend(chunk, thread, line, program, arenas, shape, rows, joint_rows, few, joint_few):
    """A chunk is a tile of query rows and a KV head; and some spans, where spans are attended apart."""
    table, spans = arenas.table, arenas.table[SPANS]
    parts = (spans + table[SPAN_STEP] - 1) // table[SPAN_STEP] if spans else 1
    part, chunk = chunk % parts, chunk // parts
    kv_head, tile = chunk % program[line, AT.kv_heads], table[TILES] + chunk // program[line, AT.kv_heads] * TILE_FIELDS
    head = head_of(line, program, table, tile, kv_head, shape)
    first_row, count = table[tile], table[tile + 1] * head.share
    scores = table[SCRATCH] + thread * table[SCRATCH_STRIDE]
    queries = program[line, AT.q] + kv_head * program[line, AT.q_head] + first_row * head.share * value(shape.dim) * 4
    runs = scores + value(rows) * (SCORE_BYTES + record_bytes(shape))
    first_span, end_span = low_of(head, head.position) // SPAN_TOKENS, head.last_block // SPAN_BLOCKS + 1
    is_apart, records_of_span = spans > 0, np.int64(0)
    if is_apart:
        records_of_span = table[NUM_ROWS] * head.share * record_bytes(shape)
        runs = program[line, AT.parts] + (kv_head * spans * table[NUM_ROWS] + first_row) * head.share * record_bytes(
            shape
        )
        first_span += part * table[SPAN_STEP]
        end_span = min(end_span, first_span + table[SPAN_STEP])
    for span in range(first_span, end_span):
        at = runs + span * records_of_span
        attend_span(arenas, head, span, count, queries, scores, at, is_apart, shape, rows, joint_rows, few, joint_few)
    if is_apart:
        return
    for q in range(count):
        out = program[line, AT.out] + (first_row + q // head.share) * program[line, AT.out_stride]
        at = out + (kv_head * head.share + q % head.share) * value(shape.dim) * 4
        write_result(arenas.work, runs + q * record_bytes(shape), at, shape)
    if program[line, AT.quantised] >= 0:
        for row in range(first_row, first_row + table[tile + 1]):
            at = program[line, AT.out] + row * program[line, AT.out_stride]
            out = program[line, AT.quantised] + row * program[line, AT.quantised_stride]
            quantise_heads(arenas.work, at, kv_head * head.share, head.share, program[line, AT.width], out, line, shape)


@inline
def merge_head(row, thread, line, program, table, work, head, shape):
    """Merge one row's and head's records, span after span, and write the result."""
    spans, share, position = table[SPANS], program[line, FIN.share], table[table[POSITIONS] + row]
    window = program[line, FIN.window]
    low = max(0, position - window + 1) if window > 0 else 0
    run = table[SCRATCH] + thread * table[SCRATCH_STRIDE]
    for span in range(low // SPAN_TOKENS, position // SPAN_TOKENS + 1):
        q = ((head // share * spans + span) * table[NUM_ROWS] + row) * share + head % share
        merge(work, run, program[line, FIN.parts] + q * record_bytes(shape), span == low // SPAN_TOKENS, shape)
    out = program[line, FIN.out] + row * program[line, FIN.out_stride] + head * value(shape.dim) * 4
    write_result(work, run, out, shape)


@inline
def finish(chunk, thread, line, program, table, work, shape):
    """Some heads of one row: merge the spans that were attended apart, and quantise if the output matrix wants it."""
    heads = program[line, FIN.chunk_heads]
    parts = program[line, FIN.heads] // heads
    row, first = chunk // parts, chunk % parts * heads
    if table[SPANS]:
        for head in range(first, first + heads):
            merge_head(row, thread, line, program, table, work, head, shape)
    if program[line, FIN.quantised] >= 0:
        at = program[line, FIN.out] + row * program[line, FIN.out_stride]
        out = program[line, FIN.quantised] + row * program[line, FIN.quantised_stride]
        quantise_heads(work, at, first, heads, program[line, FIN.width], out, line, shape)


def _joint(rows: int, dim: int, registers: int) -> int:
    """The largest part of ``rows`` queries whose weighted values fit in registers."""
    return max(n for n in range(1, rows + 1) if rows % n == 0 and (n == 1 or n * dim // LANES <= registers))


def attention_kernel(dim: int, k_codec: int, v_codec: int, share: int) -> Any:
    """The kernel of attention for one head dim, one way of storing K and V, and ``share`` query heads a KV head."""
    most = target.current().query_rows
    few = share if share <= most else share % most or most
    registers = 24 if most > 3 else 8
    joint_most, joint_few = _joint(most, dim, registers), _joint(few, dim, registers)

    @kernel(SIGNATURE)
    def run_attention(chunk, thread, line, program, table, weights, cache, work):
        arenas, shape = Arenas(table, cache, work), Shape(static(dim), static(k_codec), static(v_codec))
        attend(
            chunk,
            thread,
            line,
            program,
            arenas,
            shape,
            static(most),
            static(joint_most),
            static(few),
            static(joint_few),
        )

    return run_attention


def num_record_bytes(dim: int) -> int:
    """Bytes of a query's record; kernels have ``record_bytes``."""
    return RECORD_HEAD + dim * 4


def scratch_bytes(dim: int, queries: int) -> int:
    """Scratch that one thread needs to attend a tile of ``queries`` queries of a KV head."""
    record = num_record_bytes(dim)
    return target.current().query_rows * (SCORE_BYTES + record) + queries * record


def finish_kernel(dim: int) -> Any:
    """The kernel that ends a layer's attention; a chunk is some heads of a row."""

    @kernel(SIGNATURE)
    def run_finish(chunk, thread, line, program, table, weights, cache, work):
        shape = Shape(static(dim), static(CODEC_F32), static(CODEC_F32))
        finish(chunk, thread, line, program, table, work, shape)

    return run_finish
