"""Attention over blocks: the spans of ``kernels.spans`` walked by tiles of queries and merged in ascending order.

A query's result is one fixed sequence of operations over the tokens it sees, whether a tile walks its spans one after
the other or they are attended apart and merged by ``finish``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvist.kernels import span_codes, span_floats, target
from kvist.kernels.codes import turn
from kvist.kernels.elementwise import exp, padded_width, place_of, quantise_groups
from kvist.kernels.jit import SIGNATURE, called, inline, kernel
from kvist.kernels.layout import (
    BLOCK_TOKENS,
    GROUP,
    GROUPS,
    LANES,
    NUM_ROWS,
    SCRATCH,
    SCRATCH_STRIDE,
    SLOTS,
    SPAN_BLOCKS,
    SPAN_STEP,
    SPAN_TOKENS,
    SPANS,
    TILE_FIELDS,
    TILES,
    fields,
)
from kvist.kernels.simd import (
    first_lane,
    fma,
    get_f32,
    load_f32,
    maximum,
    mul,
    put_f32,
    splat_f32,
    static,
    store,
    sub,
    value,
)
from kvist.kernels.spans import (
    CODEC_BF16,
    CODEC_F32,
    CODEC_INT4,
    CODEC_INT8,
    RECORD_HEAD,
    SCORE_BYTES,
    Arenas,
    Head,
    Shape,
    low_of,
    position_of,
    record_bytes,
    softmax_row,
)

ONE = np.float32(1)

AT = fields(
    "group kv_heads share q q_head k k_head k_block v "
    "v_head v_block window out out_stride parts quantised quantised_stride width"
)
FIN = fields("heads chunk_heads out out_stride parts share window quantised quantised_stride width")


@inline
def quantise_heads(work, at, first, heads, width, out, place, shape):
    """Quantise the columns of some heads of a row; they end at a multiple of 32, or at the row's end."""
    columns = value(shape.dim)
    end = padded_width((first + heads) * columns)
    quantise_groups(work, at, first * columns // GROUP, end // GROUP, padded_width(width), out, place)


@inline
def is_seen(head, span, position):
    """Whether the query at ``position`` sees anything of the span."""
    return span * SPAN_TOKENS <= position and low_of(head, position) < (span + 1) * SPAN_TOKENS


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
    """Write a record's weighted values over its sum, [D] f32; values that were turned are turned back."""
    inverse = splat_f32(ONE / get_f32(work, record + 4), shape.dim)
    store(work, out, mul(load_f32(work, record + RECORD_HEAD, shape.dim), inverse))
    if value(shape.v_codec) >= CODEC_INT8:
        turn(work, out, out, shape)


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
    shape.write_scores(arenas, head, first, last, query, scores, shape, rows)
    for r in range(value(rows)):
        position = position_of(head, q + r)
        low, high = low_of(head, position), position + 1
        softmax_row(arenas.work, scores + r * SCORE_BYTES, parts + r * record, first, last, low, high)
    shape.weigh_values(arenas, head, start, end, q, scores, parts, shape, rows, joint_rows)
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
    spans, share, position = table[SPANS], program[line, FIN.share], table[table[SLOTS] + row]
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
        quantise_heads(work, at, first, heads, program[line, FIN.width], out, place_of(line, row), shape)


SCORES = {
    CODEC_F32: span_floats.write_scores,
    CODEC_BF16: span_floats.write_scores,
    CODEC_INT8: span_codes.write_scores_int8,
    CODEC_INT4: span_codes.write_scores_int4,
}
VALUES = {
    CODEC_F32: span_floats.weigh_values,
    CODEC_BF16: span_floats.weigh_values,
    CODEC_INT8: span_codes.weigh_values_int8,
    CODEC_INT4: span_codes.weigh_values_int4,
}
"""Scores by the keys' codec, weighted values by the values'. Only what a model needs is compiled."""


def _panel(dim: int, v_codec: int) -> int:
    """Dims of integer values that are added up together: of int4, in each half."""
    wide = dim // 2 if v_codec == CODEC_INT4 else dim
    return next(panel for panel in (64, 32, 16, 8) if wide % panel == 0)


def _joint(rows: int, registers_a_row: int, registers: int) -> int:
    """The largest part of ``rows`` queries whose weighted values fit in registers."""
    return max(n for n in range(1, rows + 1) if rows % n == 0 and (n == 1 or n * registers_a_row <= registers))


def attention_kernel(dim: int, k_codec: int, v_codec: int, share: int) -> Any:
    """The kernel of attention for one head dim, one way of storing K and V, and ``share`` query heads a KV head."""
    most = target.current().query_rows
    few = share if share <= most else share % most or most
    registers = 24 if most > 3 else 8
    half, panel = dim // 2, _panel(dim, v_codec)
    in_use = {CODEC_INT8: panel, CODEC_INT4: 2 * panel}.get(v_codec, dim)
    joint_most, joint_few = (_joint(rows, -(-in_use // LANES), registers) for rows in (most, few))
    write_scores, weigh_values = SCORES[k_codec], VALUES[v_codec]

    @kernel(SIGNATURE)
    def run_attention(chunk, thread, line, program, table, weights, cache, work):
        arenas = Arenas(table, cache, work)
        shape = Shape(
            static(dim), static(half), static(panel), static(k_codec), static(v_codec), write_scores, weigh_values
        )
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


class ResultShape(NamedTuple):
    """What ``finish`` needs of a ``Shape``."""

    dim: Any
    v_codec: Any


def finish_kernel(dim: int, v_codec: int) -> Any:
    """The kernel that ends a layer's attention; a chunk is some heads of a row."""

    @kernel(SIGNATURE)
    def run_finish(chunk, thread, line, program, table, weights, cache, work):
        finish(chunk, thread, line, program, table, work, ResultShape(static(dim), static(v_codec)))

    return run_finish
