"""Multi-head latent attention (DeepSeek-V2, 2024), in its absorbed form: all heads attend to one latent a token.

A key is a latent (the low-rank form of a token's keys and values, after its norm) and a rotated part that all heads
share; both are stored once, as one key of one KV head, and the latent is the value as well. Instead of expanding each
latent to every head's key and value, each head's query is multiplied with the matrix that would expand the keys, and
what it attends to with the one that would expand the values: the same products, contracted in another order. Every row
takes this form, so that a prompt's rows and later ones agree in every bit.

Query heads are divided into *KV heads* for the sake of chunks only; all of them read the same keys.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvist.kernels import span_floats, span_latent, target
from kvist.kernels.attention import Groups, attend, joint
from kvist.kernels.blocks import HeadShape, check_finite, rotate, rotate_wide, scale_by_norm
from kvist.kernels.elementwise import place_of, quantise, rows_of
from kvist.kernels.jit import SIGNATURE, called, inline, kernel
from kvist.kernels.layout import (
    BLOCK_TOKENS,
    CELLS,
    GROUP_FIELDS,
    GROUPS,
    LANES,
    NUM_ROWS,
    SCRATCH,
    SCRATCH_STRIDE,
    fields,
)
from kvist.kernels.matmul import Q8_0, dots_floats, panel_bytes
from kvist.kernels.simd import (
    f32_to_bf16,
    get_f32,
    get_u16,
    load_f32,
    mul,
    put_f32,
    put_u16,
    splat_f32,
    static,
    store,
    store_rows,
    value,
)
from kvist.kernels.spans import CODEC_BF16, CODEC_NONE, Arenas, Shape, sinks_of

LATENT = fields(
    "group kv_heads share latents latents_stride queries queries_stride query_head own q q_head sink_q k k_block "
    "angles angles_stride sink_angles turned scale norm eps window"
)
HEADS = fields("w heads panels width x x_head x_stride out out_stride share out_outer out_inner chunk_panels")
ROWS = fields("x stride width out out_stride")


@inline
def write_key(work, at, cache, block, slot, scratch, k_codec, shape):
    """Write a key into column ``slot`` of its block, transposed (``kernels.blocks`` has the layouts)."""
    if value(k_codec) == CODEC_BF16:
        for i in range(0, value(shape.dim), LANES):
            store(work, scratch + i * 2, f32_to_bf16(load_f32(work, at + i * 4, LANES)))
        for d in range(value(shape.dim)):
            put_u16(cache, block + (d // 2 * BLOCK_TOKENS + slot) * 4 + d % 2 * 2, get_u16(work, scratch + d * 2))
    else:
        for d in range(value(shape.dim)):
            put_f32(cache, block + (d * BLOCK_TOKENS + slot) * 4, get_f32(work, at + d * 4))


@inline
def turn(work, at, out, angles, turned):
    """The rotated part of a query or key, from ``at`` to ``out``."""
    if turned % (2 * LANES) == 0:
        rotate_wide(work, at, out, angles, turned)
    else:
        rotate(work, at, out, angles, turned)


@inline
def scale_by(work, at, out, count, factor):
    """Multiply ``count`` numbers, a multiple of 16."""
    by = splat_f32(factor, LANES)
    for i in range(0, count, LANES):
        store(work, out + i * 4, mul(load_f32(work, at + i * 4, LANES), by))


@called
def write_queries(line, program, table, weights, work, row, kv_head, shape, latent):
    """Scale the row's absorbed queries of a KV head, and put their rotated parts behind them."""
    share, turned, rank = program[line, LATENT.share], program[line, LATENT.turned], value(latent.dim)
    scale, size = get_f32(weights, program[line, LATENT.scale]), value(shape.dim) * 4
    angles_at, place = row * program[line, LATENT.angles_stride], place_of(line, row)
    sees_sinks = sinks_of(table, row, program[line, LATENT.window]) > 0
    for g in range(share):
        head = kv_head * share + g
        own = program[line, LATENT.queries] + row * program[line, LATENT.queries_stride]
        own += head * program[line, LATENT.query_head] + program[line, LATENT.own]
        at = kv_head * program[line, LATENT.q_head] + (row * share + g) * size
        q, sink_q = program[line, LATENT.q] + at, program[line, LATENT.sink_q] + at
        scale_by(work, q, q, rank, scale)
        if sees_sinks:
            for i in range(0, rank, LANES):
                store(work, sink_q + i * 4, load_f32(work, q + i * 4, LANES))
            turn(work, own, sink_q + rank * 4, program[line, LATENT.sink_angles] + angles_at, turned)
            scale_by(work, sink_q + rank * 4, sink_q + rank * 4, turned, scale)
            check_finite(work, sink_q, place, shape)
        turn(work, own, q + rank * 4, program[line, LATENT.angles] + angles_at, turned)
        scale_by(work, q + rank * 4, q + rank * 4, turned, scale)
        check_finite(work, q, place, shape)


@called
def write_latent(thread, line, program, table, weights, cache, work, row, k_codec, shape, latent):
    """Norm a row's latent, turn what stands behind it, and write both into the row's slot."""
    rank = value(latent.dim)
    at = program[line, LATENT.latents] + row * program[line, LATENT.latents_stride]
    key = table[SCRATCH] + thread * table[SCRATCH_STRIDE]
    eps = get_f32(weights, program[line, LATENT.eps])
    scale_by_norm(work, at, key, weights, program[line, LATENT.norm], eps, latent)
    angles = program[line, LATENT.angles] + row * program[line, LATENT.angles_stride]
    turn(work, at + rank * 4, key + rank * 4, angles, program[line, LATENT.turned])
    check_finite(work, key, place_of(line, row), shape)
    cell = table[table[GROUPS + GROUP_FIELDS * program[line, LATENT.group] + CELLS] + row]
    block = program[line, LATENT.k] + cell // BLOCK_TOKENS * program[line, LATENT.k_block]
    write_key(work, key, cache, block, cell % BLOCK_TOKENS, key + value(shape.dim) * 4, k_codec, shape)


@inline
def append(chunk, thread, line, program, table, weights, cache, work, k_codec, shape, latent):
    """A chunk is some rows and a KV head; the first one's writes the rows' keys too."""
    kv_heads = program[line, LATENT.kv_heads]
    first, end = rows_of(chunk // kv_heads, table)
    for row in range(first, end):
        write_queries(line, program, table, weights, work, row, chunk % kv_heads, shape, latent)
        if chunk % kv_heads == 0:
            write_latent(thread, line, program, table, weights, cache, work, row, k_codec, shape, latent)


def latent_append_kernel(dim: int, rank: int, k_codec: int) -> Any:
    """The kernel that ends queries and writes keys: ``dim`` numbers, of which the first ``rank`` are a latent."""

    @kernel(SIGNATURE)
    def run_append(chunk, thread, line, program, table, weights, cache, work):
        shape, latent = HeadShape(static(dim), static(dim)), HeadShape(static(rank), static(rank))
        append(chunk, thread, line, program, table, weights, cache, work, static(k_codec), shape, latent)

    return run_append


def latent_attention_kernel(dim: int, rank: int, k_codec: int, share: int) -> Any:
    """The kernel of attention (``kernels.attention``) over latents."""
    most = target.current().query_rows
    few = share if share <= most else share % most or most
    joint_most, joint_few = (joint(rows, span_latent.DIMS) for rows in (most, few))
    half, write_scores, weigh_values = dim // 2, span_floats.write_scores, span_latent.weigh_values

    @kernel(SIGNATURE)
    def run_attention(chunk, thread, line, program, table, weights, cache, work):
        shape = Shape(
            static(dim),
            static(half),
            static(rank),
            static(rank),
            static(k_codec),
            static(CODEC_NONE),
            write_scores,
            weigh_values,
            static(0),
            np.float32(0),
        )
        groups = Groups(static(most), static(joint_most), static(few), static(joint_few))
        attend(chunk, thread, line, program, weights, Arenas(table, cache, work), shape, groups)

    return run_attention


@inline
def tiles(weights, panel, work, x, x_stride, row, num_rows, width, out, out_stride, rows, form):
    """As many tiles of ``rows`` rows times one panel as there are left; returns the next row."""
    while row + value(rows) <= num_rows:
        acc = dots_floats(weights, panel, np.int64(0), work, x + row * x_stride, x_stride, width, rows, form)
        store_rows(work, out + row * out_stride, out_stride, acc)
        row += value(rows)
    return row


@called
def times_panel(weights, panel, work, x, x_stride, num_rows, width, out, out_stride, tile_rows, form):
    """All rows times one panel, by the sequence of ``kernels.matmul``."""
    row = tiles(weights, panel, work, x, x_stride, np.int64(0), num_rows, width, out, out_stride, tile_rows, form)
    tiles(weights, panel, work, x, x_stride, row, num_rows, width, out, out_stride, static(1), form)


@inline
def multiply_heads(chunk, line, program, table, weights, work, form, tile_rows):
    """A chunk is some panels of one head's matrix times all rows of that head's columns."""
    panels, chunk_panels = program[line, HEADS.panels], program[line, HEADS.chunk_panels]
    across = (panels + chunk_panels - 1) // chunk_panels
    head, first = chunk // across, chunk % across * chunk_panels
    share, width, num_rows = program[line, HEADS.share], program[line, HEADS.width], table[NUM_ROWS]
    x = program[line, HEADS.x] + head * program[line, HEADS.x_head]
    out = program[line, HEADS.out] + head // share * program[line, HEADS.out_outer]
    out += head % share * program[line, HEADS.out_inner]
    size = panel_bytes(width, form)
    for p in range(first, min(panels, first + chunk_panels)):
        panel = program[line, HEADS.w] + (head * panels + p) * size
        x_stride, out_stride = program[line, HEADS.x_stride], program[line, HEADS.out_stride]
        times_panel(weights, panel, work, x, x_stride, num_rows, width, out + p * 64, out_stride, tile_rows, form)


def heads_kernel(form: int) -> Any:
    """The kernel that multiplies each head's columns with a matrix of its own, of a floating-point form."""
    assert form < Q8_0, form
    rows = target.current().tile_rows

    @kernel(SIGNATURE)
    def run_heads(chunk, thread, line, program, table, weights, cache, work):
        multiply_heads(chunk, line, program, table, weights, work, static(form), static(rows))

    return run_heads


def rows_kernel() -> Any:
    """The kernel that quantises rows for the matrix after it; a chunk is some rows."""

    @kernel(SIGNATURE)
    def run_rows(chunk, thread, line, program, table, weights, cache, work):
        first, end = rows_of(chunk, table)
        for row in range(first, end):
            at = program[line, ROWS.x] + row * program[line, ROWS.stride]
            out = program[line, ROWS.out] + row * program[line, ROWS.out_stride]
            quantise(work, at, program[line, ROWS.width], out, place_of(line, row))

    return run_rows


def scratch_bytes(dim: int) -> int:
    """Scratch that a thread needs to write a key."""
    return dim * 4 + dim * 2
