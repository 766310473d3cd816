"""What happens to a row's q, k and v before attention: norms, rotation, scaling, and writing K and V into their block.

Queries are laid out ``[kv_head][row][share][D]``, scaled, so that the queries that share a KV head stand together; each
has the room of D f32 numbers and the form in which it meets keys: f32, bf16, or codes.
Those of a row that sees sinks are written a second time, turned by its capped position: they meet the sinks.
A value is rounded once, here, by its codec; NaN or infinity in it sets the status.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvist.kernels import codes
from kvist.kernels.elementwise import inverse_root, mean_square, place_of, report, rows_of
from kvist.kernels.jit import SIGNATURE, called, inline, kernel
from kvist.kernels.layout import (
    BLOCK_TOKENS,
    CELLS,
    GROUP_FIELDS,
    GROUPS,
    LANES,
    SCRATCH,
    SCRATCH_STRIDE,
    fields,
)
from kvist.kernels.simd import (
    add,
    f32_to_bf16,
    fma,
    get_f32,
    get_i32,
    load_f32,
    mul,
    prefetch,
    put_f32,
    put_i32,
    splat_f32,
    static,
    store,
    store_apart,
    sub,
    sum_lanes,
    value,
    zero_f32,
)
from kvist.kernels.span_bf16 import put_rounded
from kvist.kernels.spans import CODEC_BF16, CODEC_F32, CODEC_INT4, CODEC_INT8, LINE, sinks_of

ZERO = np.float32(0)


class HeadShape(NamedTuple):
    """Compile-time constants: head dim, and half of it."""

    dim: Any
    half: Any


AP = fields(
    "group kv_heads share qkv qkv_stride q q_head k k_head k_block "
    "v v_head v_block angles angles_stride turned scale q_norm k_norm eps window sink_q sink_angles"
)


@inline
def scale_by_norm(work, at, out, weights, weight, eps, shape):
    """RMSNorm over one head's dims."""
    factor = splat_f32(inverse_root(mean_square(work, at, value(shape.dim), ZERO) + eps), LANES)
    for i in range(0, value(shape.dim), LANES):
        x = mul(mul(load_f32(work, at + i * 4, LANES), factor), load_f32(weights, weight + i * 4, LANES))
        store(work, out + i * 4, x)


@inline
def rotate(work, at, out, angles, turned):
    """Turn dims i and i + turned/2 by the row's angle i, for each i below turned/2; ``at`` may be ``out``."""
    half = turned // 2
    for i in range(half):
        cosine, sine = get_f32(work, angles + i * 4), get_f32(work, angles + (half + i) * 4)
        a, b = get_f32(work, at + i * 4), get_f32(work, at + (half + i) * 4)
        put_f32(work, out + i * 4, a * cosine - b * sine)
        put_f32(work, out + (half + i) * 4, b * cosine + a * sine)


@inline
def rotate_wide(work, at, out, angles, turned):
    """The same, 16 dims at a time."""
    half = turned // 2
    for i in range(0, half, LANES):
        cosine, sine = load_f32(work, angles + i * 4, LANES), load_f32(work, angles + (half + i) * 4, LANES)
        a, b = load_f32(work, at + i * 4, LANES), load_f32(work, at + (half + i) * 4, LANES)
        store(work, out + i * 4, sub(mul(a, cosine), mul(b, sine)))
        store(work, out + (half + i) * 4, add(mul(b, cosine), mul(a, sine)))


@called
def prepare(work, at, out, angles, turned, weights, norm, eps, factor, shape):
    """One head of q or k: norm, rotation, scale; ``norm`` below 0 means none."""
    if norm >= 0:
        scale_by_norm(work, at, out, weights, norm, eps, shape)
    else:
        store(work, out, load_f32(work, at, shape.dim))
    if turned > 0:
        if turned % (2 * LANES) == 0:
            rotate_wide(work, out, out, angles, turned)
        else:
            rotate(work, out, out, angles, turned)
    store(work, out, mul(load_f32(work, out, shape.dim), splat_f32(factor, shape.dim)))


@inline
def check_finite(work, at, place, shape):
    """Set the status where one of a head's numbers is NaN or infinite."""
    check = zero_f32(1, LANES)
    for i in range(0, value(shape.dim), LANES):
        check = fma(load_f32(work, at + i * 4, LANES), splat_f32(ZERO, LANES), check)
    if sum_lanes(check) != ZERO:
        report(work, place)


@inline
def write_query_float(work, at, out, shape):
    """Queries meet f32 keys as f32."""
    store(work, out, load_f32(work, at, shape.dim))


@inline
def write_query_bf16(work, at, out, shape):
    """Queries meet bf16 keys rounded to bf16."""
    put_rounded(work, out, load_f32(work, at, shape.dim))


@inline
def write_key_f32(work, at, cache, block, slot, scratch, shape):
    """Write a key into column ``slot`` of its block, transposed."""
    for d in range(value(shape.dim)):
        put_f32(cache, block + (d * BLOCK_TOKENS + slot) * 4, get_f32(work, at + d * 4))


@inline
def write_key_bf16(work, at, cache, block, slot, scratch, shape):
    """The same; dims 2i and 2i + 1 stand side by side."""
    store(work, scratch, f32_to_bf16(load_f32(work, at, shape.dim)))
    for i in range(value(shape.half)):
        put_i32(cache, block + (i * BLOCK_TOKENS + slot) * 4, get_i32(work, scratch + i * 4))


@inline
def write_value_f32(work, at, cache, block, slot, scratch, shape):
    """Write a value into its slot."""
    store(cache, block + slot * value(shape.dim) * 4, load_f32(work, at, shape.dim))


@inline
def write_value_bf16(work, at, cache, block, slot, scratch, shape):
    """The same; two tokens stand side by side."""
    to = block + slot // 2 * value(shape.dim) * 4 + slot % 2 * 2
    store_apart(cache, to, f32_to_bf16(load_f32(work, at, shape.dim)))


QUERIES = {
    CODEC_F32: write_query_float,
    CODEC_BF16: write_query_bf16,
    CODEC_INT8: codes.write_query,
    CODEC_INT4: codes.write_query,
}
KEYS = {
    CODEC_F32: write_key_f32,
    CODEC_BF16: write_key_bf16,
    CODEC_INT8: codes.write_key_int8,
    CODEC_INT4: codes.write_key_int4,
}
VALUES = {
    CODEC_F32: write_value_f32,
    CODEC_BF16: write_value_bf16,
    CODEC_INT8: codes.write_value_int8,
    CODEC_INT4: codes.write_value_int4,
}
"""How a query for keys of a codec is written, and a key and a value in it. Only what a model needs is compiled."""


class Prepared(NamedTuple):
    """How a row's queries are prepared: norm (below 0: none), scale, room for a head, the place for the status."""

    weights: Any
    norm: int
    eps: float
    scale: float
    head: int
    place: int


@called
def write_queries(work, heads, out, angles, turned, share, prepared, shape, write_query):
    """Prepare the ``share`` queries of a row and KV head that stand at ``heads``, and write them at ``out``."""
    size, head = value(shape.dim) * 4, prepared.head
    for g in range(share):
        at, weights, norm = heads + g * size, prepared.weights, prepared.norm
        prepare(work, at, head, angles, turned, weights, norm, prepared.eps, prepared.scale, shape)
        check_finite(work, head, prepared.place, shape)
        write_query(work, head, out + g * size, shape)


@inline
def append(chunk, thread, line, program, table, weights, cache, work, shape, write_query, write_key, write_value):
    """A chunk is some rows, neighbours in their blocks where these are one sequence's, and a KV head."""
    kv_heads = program[line, AP.kv_heads]
    first, end = rows_of(chunk // kv_heads, table)
    for row in range(first, end):
        append_row(
            row,
            chunk % kv_heads,
            thread,
            line,
            program,
            table,
            weights,
            cache,
            work,
            shape,
            write_query,
            write_key,
            write_value,
        )


@inline
def append_row(
    row, kv_head, thread, line, program, table, weights, cache, work, shape, write_query, write_key, write_value
):
    """A row's queries of a KV head are prepared, its key and value written into the row's slot."""
    kv_heads, share = program[line, AP.kv_heads], program[line, AP.share]
    size, place = value(shape.dim) * 4, place_of(line, row)
    qkv = program[line, AP.qkv] + row * program[line, AP.qkv_stride]
    angles, turned = program[line, AP.angles] + row * program[line, AP.angles_stride], program[line, AP.turned]
    cell = table[table[GROUPS + GROUP_FIELDS * program[line, AP.group] + CELLS] + row]
    block, column = cell // BLOCK_TOKENS, cell % BLOCK_TOKENS
    k_block = program[line, AP.k] + kv_head * program[line, AP.k_head] + block * program[line, AP.k_block]
    v_block = program[line, AP.v] + kv_head * program[line, AP.v_head] + block * program[line, AP.v_block]
    for at in range(0, program[line, AP.k_block], LINE):  # a key goes to every line of its block
        prefetch(cache, k_block + at)
    eps = get_f32(weights, program[line, AP.eps])
    scale = get_f32(weights, program[line, AP.scale])
    head = table[SCRATCH] + thread * table[SCRATCH_STRIDE]
    prepared = Prepared(weights, program[line, AP.q_norm], eps, scale, head, place)
    heads, queries = qkv + kv_head * share * size, kv_head * program[line, AP.q_head] + row * share * size
    write_queries(work, heads, program[line, AP.q] + queries, angles, turned, share, prepared, shape, write_query)
    if sinks_of(table, row, program[line, AP.window]) > 0:
        angles_at, out = program[line, AP.sink_angles] + row * program[line, AP.angles_stride], program[line, AP.sink_q]
        write_queries(work, heads, out + queries, angles_at, turned, share, prepared, shape, write_query)
    k_in, v_in = qkv + (kv_heads * share + kv_head) * size, qkv + (kv_heads * share + kv_heads + kv_head) * size
    prepare(work, k_in, head, angles, turned, weights, program[line, AP.k_norm], eps, np.float32(1), shape)
    check_finite(work, head, place, shape)
    check_finite(work, v_in, place, shape)
    write_key(work, head, cache, k_block, column, head + size, shape)
    write_value(work, v_in, cache, v_block, column, head, shape)


def append_kernel(dim: int, k_codec: int, v_codec: int) -> Any:
    """The kernel that prepares q and writes K and V, for one head dim and one way of storing them."""
    half = dim // 2
    write_query, write_key, write_value = QUERIES[k_codec], KEYS[k_codec], VALUES[v_codec]

    @kernel(SIGNATURE)
    def run_append(chunk, thread, line, program, table, weights, cache, work):
        shape = HeadShape(static(dim), static(half))
        append(chunk, thread, line, program, table, weights, cache, work, shape, write_query, write_key, write_value)

    return run_append
