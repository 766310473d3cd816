"""Attention over blocks: the spans of ``kernels.spans`` walked by tiles of queries and merged in ascending order.

A query's result is one fixed sequence of operations over the tokens it sees, whether a tile walks its spans one after
the other or they are attended apart and merged by ``finish``, and whoever is in the tile. Where a sequence keeps sinks
(StreamingLLM, Xiao et al., 2024), its first tokens are a unit of the softmax by themselves, attended first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvist.kernels import span_bf16, span_codes, span_floats, span_latent, target
from kvist.kernels.caps import cap_scores
from kvist.kernels.codes import turn
from kvist.kernels.elementwise import exp, padded_width, place_of, quantise_groups
from kvist.kernels.jit import SIGNATURE, called, inline, kernel
from kvist.kernels.layout import (
    BLOCK_TOKENS,
    BLOCKS,
    GROUP,
    GROUP_FIELDS,
    GROUPS,
    LANES,
    NUM_ROWS,
    NUM_TILES,
    SCRATCH,
    SCRATCH_STRIDE,
    SHARED,
    SLOTS,
    SPAN_BLOCKS,
    SPAN_PARTS,
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
    CODEC_NONE,
    RECORD_HEAD,
    SCALE_BYTES,
    SCORE_BYTES,
    Arenas,
    Head,
    Shape,
    low_of,
    position_of,
    record_bytes,
    sinks_of,
    window_of,
)

ZERO, ONE = np.float32(0), np.float32(1)
NEVER = np.int64(1 << 40)
"""A span beyond every sequence's last."""
ZERO_INT: Any = np.int64(0)
"""Not a literal, which would have a type of its own, for which all that is called with it would be compiled again."""

AT = fields(
    "group kv_heads share q q_head sink_q k k_head k_block v "
    "v_head v_block window out out_stride parts quantised quantised_stride width cap nothing chunks_ahead"
)
FIN = fields("heads chunk_heads out out_stride parts share window quantised quantised_stride width nothing")


@inline
def quantise_heads(work, at, first, heads, width, out, place, shape):
    """Quantise the columns of some heads of a row; they end at a multiple of 32, or at the row's end."""
    columns = value(shape.v_dim)
    end = padded_width((first + heads) * columns)
    quantise_groups(work, at, first * columns // GROUP, end // GROUP, padded_width(width), out, place)


class Groups(NamedTuple):
    """Compile-time constants: how many queries are attended together at most, how many where fewer are left, and of
    how many of each the weighted values are added up together."""

    most: Any
    joint_most: Any
    few: Any
    joint_few: Any


@called
def merge(work, into, part, is_first, shape):
    """Merge a span's record into a running one (Milakov and Gimelshein, 2018); the first is copied."""
    if is_first:
        put_f32(work, into, get_f32(work, part))
        put_f32(work, into + 4, get_f32(work, part + 4))
        store(work, into + RECORD_HEAD, load_f32(work, part + RECORD_HEAD, shape.v_dim))
        return
    old, new = splat_f32(get_f32(work, into), LANES), splat_f32(get_f32(work, part), LANES)
    top = maximum(old, new)
    keep, gain = exp(sub(old, top)), exp(sub(new, top))
    total = fma(splat_f32(get_f32(work, into + 4), LANES), keep, mul(splat_f32(get_f32(work, part + 4), LANES), gain))
    put_f32(work, into, first_lane(top))
    put_f32(work, into + 4, first_lane(total))
    kept = splat_f32(first_lane(keep), shape.v_dim)
    gained = mul(load_f32(work, part + RECORD_HEAD, shape.v_dim), splat_f32(first_lane(gain), shape.v_dim))
    store(work, into + RECORD_HEAD, fma(load_f32(work, into + RECORD_HEAD, shape.v_dim), kept, gained))


@called
def share_beside(work, record, nothing):
    """What a record's weighted values are multiplied with where ``nothing`` is the logit of reading nothing at all."""
    old, other = splat_f32(get_f32(work, record), LANES), splat_f32(nothing, LANES)
    top = maximum(old, other)
    keep = exp(sub(old, top))
    total = fma(splat_f32(get_f32(work, record + 4), LANES), keep, exp(sub(other, top)))
    return first_lane(keep) / first_lane(total)


@called
def write_result(weights, work, record, out, nothing, shape):
    """Write a record's weighted values over its sum, [D] f32; values that were turned are turned back.

    ``nothing``: where a head's learned logit stands, which counts in the sum as a token without a value; -1: none.
    """
    factor = ONE / get_f32(work, record + 4)
    if nothing >= 0:
        factor = share_beside(work, record, get_f32(weights, nothing))
    inverse = splat_f32(factor, shape.v_dim)
    store(work, out, mul(load_f32(work, record + RECORD_HEAD, shape.v_dim), inverse))
    if CODEC_INT8 <= value(shape.v_codec) <= CODEC_INT4:
        turn(work, out, out, shape)


class Desk(NamedTuple):
    """Where a tile of one KV head works: offsets in the work arena.

    ``queries``, and ``sink_queries`` that meet the sinks: [count][D]. ``scores`` is room for a group's scores and
    records. ``runs`` are the queries' running records, or the first span's where ``is_apart`` spans have records of
    their own, ``stride`` apart, ``ring`` of them, and then those of the sinks.
    """

    queries: int
    sink_queries: int
    scores: int
    runs: int
    stride: int
    ring: int
    is_apart: bool


@called
def attend_queries(arenas, head, start, end, q, query, scores, runs, is_apart, shape, rows, joint_rows):
    """Attend tokens ``start`` to ``end`` - 1, a unit of the softmax, with queries ``q`` to ``q + rows`` - 1.

    ``query`` is where the first one's vector stands, ``scores`` room for the scores and the unit's own records, which
    are merged into the queries' running records. ``is_apart``: kept by themselves, for ``finish`` to merge.
    """
    start = max(start, low_of(head, position_of(head, q)))
    stop = min(end, position_of(head, q + value(rows) - 1) + 1)
    if start >= stop:
        return
    first, last = start // BLOCK_TOKENS, (stop + BLOCK_TOKENS - 1) // BLOCK_TOKENS
    record, parts = record_bytes(shape), scores + value(rows) * SCORE_BYTES
    shape.write_scores(arenas, head, first, last, query, scores, shape, rows)
    if value(shape.is_capped):
        cap_scores(arenas.work, scores, first, last, shape.cap, rows)
    shape.weigh_values(arenas, head, start, stop, q, scores, parts, shape, rows, joint_rows)
    for r in range(value(rows)):
        position = position_of(head, q + r)
        if max(start, low_of(head, position)) < min(end, position + 1):
            run = runs + (q + r) * record
            is_first = is_apart or get_f32(arenas.work, run + 4) == ZERO
            merge(arenas.work, run, parts + r * record, is_first, shape)


@inline
def attend_some(arenas, head, start, end, q, count, queries, scores, runs, is_apart, shape, rows, joint_rows):
    """Attend a unit with as many whole groups of ``rows`` queries as are left; returns the next query."""
    while q + value(rows) <= count:
        query = queries + q * value(shape.dim) * 4
        attend_queries(arenas, head, start, end, q, query, scores, runs, is_apart, shape, rows, joint_rows)
        q += value(rows)
    return q


@called
def attend_unit(arenas, head, start, end, first, count, queries, runs, desk, shape, groups):
    """Attend a unit with ``count`` queries, the desk's from ``first`` on, the first of which is ``head``'s first.

    They are taken in the largest groups, then in smaller ones, then one by one.
    """
    queries, runs = queries + first * value(shape.dim) * 4, runs + first * record_bytes(shape)
    q, scores, apart = np.int64(0), desk.scores, desk.is_apart
    most, few = groups.most, groups.few
    q = attend_some(arenas, head, start, end, q, count, queries, scores, runs, apart, shape, most, groups.joint_most)
    q = attend_some(arenas, head, start, end, q, count, queries, scores, runs, apart, shape, few, groups.joint_few)
    attend_some(arenas, head, start, end, q, count, queries, scores, runs, apart, shape, static(1), static(1))


@called
def walk(arenas, head, first_span, end_span, first, count, desk, shape, groups):
    """Attend spans ``first_span`` to ``end_span`` - 1 in ascending order."""
    for span in range(first_span, end_span):
        start, runs = span * SPAN_TOKENS, desk.runs
        if desk.is_apart:
            runs += span % desk.ring * desk.stride
        attend_unit(arenas, head, start, start + SPAN_TOKENS, first, count, desk.queries, runs, desk, shape, groups)


@called
def attend_sinks(arenas, head, first, count, desk, shape, groups):
    """Attend the sinks, with the queries that are turned for them."""
    seen = head_at(head, head.position, ZERO_INT, ZERO_INT)
    runs = desk.runs + desk.ring * desk.stride if desk.is_apart else desk.runs
    attend_unit(arenas, seen, ZERO_INT, head.sinks, first, count, desk.sink_queries, runs, desk, shape, groups)


@inline
def head_at(head, position, window, sinks):
    """The same blocks seen from another position, through another window."""
    return Head(
        head.k,
        head.k_block,
        head.v,
        head.v_block,
        head.blocks,
        position,
        head.share,
        window,
        sinks,
        head.last_block,
        head.next_k,
        head.next_blocks,
        head.next_last,
    )


@inline
def head_of(line, program, table, row, num_rows, kv_head):
    """What ``num_rows`` rows of one sequence see of a KV head of this line's layer."""
    k = program[line, AT.k] + kv_head * program[line, AT.k_head]
    v = program[line, AT.v] + kv_head * program[line, AT.v_head]
    blocks = table[table[GROUPS + GROUP_FIELDS * program[line, AT.group] + BLOCKS] + row]
    slot, own = table[table[SLOTS] + row], program[line, AT.window]
    return Head(
        k,
        program[line, AT.k_block],
        v,
        program[line, AT.v_block],
        blocks,
        slot,
        program[line, AT.share],
        window_of(table, row, own),
        sinks_of(table, row, own),
        (slot + num_rows - 1) // BLOCK_TOKENS,
        k,
        blocks,
        ZERO_INT,
    )


@inline
def before(head, follower, span):
    """The same head, after which the thread attends ``follower``, from ``span`` on."""
    first = min(span * SPAN_BLOCKS, follower.last_block)
    return Head(
        head.k,
        head.k_block,
        head.v,
        head.v_block,
        head.blocks,
        head.position,
        head.share,
        head.window,
        head.sinks,
        head.last_block,
        follower.k,
        follower.blocks + first,
        follower.last_block - first,
    )


@inline
def low_span_of(head):
    """The first span of which the tile's first row sees anything besides sinks."""
    return low_of(head, head.position) // SPAN_TOKENS


@inline
def first_unit_span(head):
    """The span that a tile's unit 0 would be: units are the sinks, if any, and then one span after the other."""
    return low_span_of(head) - (1 if head.sinks > 0 else 0)


@inline
def attend_tile(
    arenas, line, program, row, members, member_rows, kv_head, shared, low, high, follower, span, desk, shape, groups
):
    """Attend units ``low`` to ``high`` - 1 of a tile: of ``members`` sequences, ``member_rows`` rows each.

    What they share, spans ``shared[0]`` to ``shared[1]`` - 1, is attended by all rows together, as all of it is seen by
    all of them. Each row's own spans come before and after, so that all of a query's units are merged in order.
    What the thread attends next is likely to be ``follower`` from ``span`` on.
    """
    count = member_rows * program[line, AT.share]
    for m in range(members):
        head = before(head_of(line, program, arenas.table, row + m * member_rows, member_rows, kv_head), follower, span)
        base = first_unit_span(head)
        if head.sinks > 0 and low == 0:
            attend_sinks(arenas, head, m * count, count, desk, shape, groups)
        end = min(shared[0], base + high, head.last_block // SPAN_BLOCKS + 1)
        walk(arenas, head, max(low_span_of(head), base + low), end, m * count, count, desk, shape, groups)
    if members == 1:
        return
    head = head_of(line, program, arenas.table, row, 1, kv_head)
    base = first_unit_span(head)
    start, end = max(shared[0], base + low), min(shared[1], base + high)
    head = head_at(head, shared[1] * SPAN_TOKENS, ZERO_INT, ZERO_INT)
    walk(arenas, head, start, end, ZERO_INT, members * count, desk, shape, groups)
    for m in range(members):
        head = head_of(line, program, arenas.table, row + m * member_rows, member_rows, kv_head)
        if m + 1 < members:
            head = before(head, head_of(line, program, arenas.table, row + m + 1, 1, kv_head), shared[1])
        else:
            head = before(head, follower, span)
        base = first_unit_span(head)
        end = min(base + high, head.last_block // SPAN_BLOCKS + 1)
        start = max(shared[1], low_span_of(head), base + low)
        walk(arenas, head, start, end, m * count, count, desk, shape, groups)


@inline
def shared_of(table, group, tile, is_mixed):
    """The (first, end) spans that a tile's rows share; of a tile of one sequence, an end beyond its last."""
    if not is_mixed:
        return NEVER, NEVER
    at = table[GROUPS + GROUP_FIELDS * group + SHARED] + 2 * tile
    return table[at], table[at + 1]


@inline
def follower_of(chunk, line, program, table):
    """What the thread's next chunk is likely to be, if there is one: a head, and the first span that it attends."""
    kv_heads, parts = program[line, AT.kv_heads], table[SPAN_PARTS]
    following = chunk + program[line, AT.chunks_ahead]
    if following >= table[NUM_TILES] * kv_heads * parts:
        following = chunk
    tile = table[TILES] + following // parts // kv_heads * TILE_FIELDS
    head = head_of(line, program, table, table[tile], 1, following // parts % kv_heads)
    return head, low_span_of(head) + following % parts * table[SPAN_STEP]


@inline
def attend(chunk, thread, line, program, weights, arenas, shape, groups):
    """A chunk is a tile of query rows and a KV head; and some units, where spans are attended apart."""
    table, work, kv_heads, share = arenas.table, arenas.work, program[line, AT.kv_heads], program[line, AT.share]
    follower, span = follower_of(chunk, line, program, table)
    part, chunk = chunk % table[SPAN_PARTS], chunk // table[SPAN_PARTS]
    kv_head, number = chunk % kv_heads, chunk // kv_heads
    tile = table[TILES] + number * TILE_FIELDS
    first_row, num_rows, is_mixed = table[tile], table[tile + 1], table[tile + 2]
    record, is_apart = record_bytes(shape), table[SPANS] > 0
    scores = table[SCRATCH] + thread * table[SCRATCH_STRIDE]
    runs, stride = scores + value(groups.most) * (SCORE_BYTES + record) + SCALE_BYTES, table[NUM_ROWS] * share * record
    if is_apart:
        runs = program[line, AT.parts] + kv_head * (table[SPANS] + 1) * stride + first_row * share * record
    else:
        for q in range(num_rows * share):
            put_f32(work, runs + q * record + 4, ZERO)
    at = kv_head * program[line, AT.q_head] + first_row * share * value(shape.dim) * 4
    queries, sink_queries = program[line, AT.q] + at, program[line, AT.sink_q] + at
    desk = Desk(queries, sink_queries, scores, runs, stride, table[SPANS], is_apart)
    members = num_rows if is_mixed else 1
    attend_tile(
        arenas,
        line,
        program,
        first_row,
        members,
        num_rows // members,
        kv_head,
        shared_of(table, program[line, AT.group], number, is_mixed),
        part * table[SPAN_STEP],
        (part + 1) * table[SPAN_STEP],
        follower,
        span,
        desk,
        shape,
        groups,
    )
    if not is_apart:
        write_tile(weights, work, line, program, first_row, num_rows, kv_head, runs, shape)


@inline
def write_tile(weights, work, line, program, first_row, num_rows, kv_head, runs, shape):
    """Write the results of a tile's rows; quantised too, where a KV head's columns are whole groups."""
    share = program[line, AT.share]
    for q in range(num_rows * share):
        out = program[line, AT.out] + (first_row + q // share) * program[line, AT.out_stride]
        head = kv_head * share + q % share
        nothing = nothing_of(program[line, AT.nothing], head)
        at = out + head * value(shape.v_dim) * 4
        write_result(weights, work, runs + q * record_bytes(shape), at, nothing, shape)
    if program[line, AT.quantised] >= 0:
        for row in range(first_row, first_row + num_rows):
            at = program[line, AT.out] + row * program[line, AT.out_stride]
            out = program[line, AT.quantised] + row * program[line, AT.quantised_stride]
            quantise_heads(work, at, kv_head * share, share, program[line, AT.width], out, place_of(line, row), shape)


@inline
def nothing_of(nothing, head):
    """Where a head's logit of reading nothing stands; -1: nowhere."""
    return nothing + head * 4 if nothing >= 0 else nothing


@inline
def merge_head(row, thread, line, program, table, weights, work, head, shape):
    """Merge one row's and head's records, the sinks' and then span after span, and write the result."""
    ring, share, own = table[SPANS], program[line, FIN.share], program[line, FIN.window]
    slot, window, sinks = table[table[SLOTS] + row], window_of(table, row, own), sinks_of(table, row, own)
    low = max(sinks, slot - window + 1) if window > 0 else 0
    run, is_first = table[SCRATCH] + thread * table[SCRATCH_STRIDE], True
    stride = table[NUM_ROWS] * share * record_bytes(shape)
    parts = program[line, FIN.parts] + head // share * (ring + 1) * stride
    parts += (row * share + head % share) * record_bytes(shape)
    if sinks > 0:
        merge(work, run, parts + ring * stride, is_first, shape)
        is_first = False
    if low <= slot:
        for span in range(low // SPAN_TOKENS, slot // SPAN_TOKENS + 1):
            merge(work, run, parts + span % ring * stride, is_first, shape)
            is_first = False
    out = program[line, FIN.out] + row * program[line, FIN.out_stride] + head * value(shape.v_dim) * 4
    write_result(weights, work, run, out, nothing_of(program[line, FIN.nothing], head), shape)


@inline
def finish(chunk, thread, line, program, table, weights, work, shape):
    """Some heads of one row: merge the spans that were attended apart, and quantise if the output matrix wants it."""
    heads = program[line, FIN.chunk_heads]
    parts = program[line, FIN.heads] // heads
    row, first = chunk // parts, chunk % parts * heads
    if table[SPANS]:
        for head in range(first, first + heads):
            merge_head(row, thread, line, program, table, weights, work, head, shape)
    if program[line, FIN.quantised] >= 0:
        at = program[line, FIN.out] + row * program[line, FIN.out_stride]
        out = program[line, FIN.quantised] + row * program[line, FIN.quantised_stride]
        quantise_heads(work, at, first, heads, program[line, FIN.width], out, place_of(line, row), shape)


SCORES = {
    CODEC_F32: span_floats.write_scores,
    CODEC_BF16: span_bf16.write_scores,
    CODEC_INT8: span_codes.write_scores_int8,
    CODEC_INT4: span_codes.write_scores_int4,
}
VALUES = {
    CODEC_F32: span_floats.weigh_values,
    CODEC_BF16: span_bf16.weigh_values,
    CODEC_INT8: span_codes.weigh_values_int8,
    CODEC_INT4: span_codes.weigh_values_int4,
    CODEC_NONE: span_latent.weigh_values,
}
"""Scores by the keys' codec, weighted values by the values'. Only what a model needs is compiled."""


def _panel(dim: int, v_codec: int) -> int:
    """Dims of values that are added up together: of int4, in each half."""
    wide = dim // 2 if v_codec == CODEC_INT4 else dim
    most = target.current().value_dims or (64 if v_codec in (CODEC_INT8, CODEC_INT4) else dim)
    return next((panel for panel in (most, 32, 16, 8) if panel <= most and wide % panel == 0), wide)


def joint(rows: int, vectors_a_row: int) -> int:
    """The largest part of ``rows`` queries whose weighted values fit in registers."""
    most = target.current().sums
    return max(n for n in range(1, rows + 1) if rows % n == 0 and (n == 1 or n * vectors_a_row <= most))


def attention_kernel(dim: int, k_codec: int, v_codec: int, share: int, is_capped: int = 0) -> Any:
    """The kernel of attention for one head dim, one way of storing K and V, and ``share`` query heads a KV head.

    ``is_capped``: scores have a soft cap.
    """
    most = target.current().query_rows
    few = share if share <= most else share % most or most
    half, panel = dim // 2, _panel(dim, v_codec)
    in_use = 2 * panel if v_codec == CODEC_INT4 else panel
    joint_most, joint_few = (joint(rows, -(-in_use // LANES)) for rows in (most, few))
    write_scores, weigh_values = SCORES[k_codec], VALUES[v_codec]

    @kernel(SIGNATURE)
    def run_attention(chunk, thread, line, program, table, weights, cache, work):
        arenas = Arenas(table, cache, work)
        shape = Shape(
            static(dim),
            static(half),
            static(dim),
            static(panel),
            static(k_codec),
            static(v_codec),
            write_scores,
            weigh_values,
            static(is_capped),
            get_f32(weights, program[line, AT.cap]) if is_capped else np.float32(0),
        )
        groups = Groups(static(most), static(joint_most), static(few), static(joint_few))
        attend(chunk, thread, line, program, weights, arenas, shape, groups)

    return run_attention


def num_record_bytes(dim: int) -> int:
    """Bytes of the record of a query of values of width ``dim``; kernels have ``record_bytes``."""
    return RECORD_HEAD + dim * 4


def scratch_bytes(dim: int, queries: int) -> int:
    """Scratch that one thread needs to attend a tile of ``queries`` queries of a KV head."""
    record = num_record_bytes(dim)
    return target.current().query_rows * (SCORE_BYTES + record) + SCALE_BYTES + queries * record


class ResultShape(NamedTuple):
    """What ``finish`` needs of a ``Shape``."""

    dim: Any
    v_dim: Any
    v_codec: Any


def finish_kernel(dim: int, v_codec: int) -> Any:
    """The kernel that ends a layer's attention; a chunk is some heads of a row."""

    @kernel(SIGNATURE)
    def run_finish(chunk, thread, line, program, table, weights, cache, work):
        finish(
            chunk, thread, line, program, table, weights, work, ResultShape(static(dim), static(dim), static(v_codec))
        )

    return run_finish
