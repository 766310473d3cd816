"""What happens to a row's q, k and v before attention: norms, rotation, scaling, and writing K and V into their block.

Queries are laid out ``[kv_head][row][share][D]`` f32, scaled, so that the queries that share a KV head stand together.
A value is rounded once, here, by its codec; NaN or infinity in it sets the status.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvist.kernels.elementwise import inverse_root, mean_square, report
from kvist.kernels.jit import SIGNATURE, called, inline, kernel
from kvist.kernels.layout import BLOCK_TOKENS, GROUPS, LANES, SCRATCH, SCRATCH_STRIDE, fields
from kvist.kernels.simd import (
    add,
    f32_to_bf16,
    fma,
    get_f32,
    get_u16,
    load_f32,
    mul,
    put_f32,
    put_u16,
    splat_f32,
    static,
    store,
    sub,
    sum_lanes,
    value,
    zero_f32,
)
from kvist.kernels.spans import CODEC_BF16, Shape

ZERO = np.float32(0)

AP = fields(
    "group kv_heads share qkv qkv_stride q q_head k k_head k_block "
    "v v_head v_block angles angles_stride turned scale q_norm k_norm eps"
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
def write_key(work, at, cache, block, slot, scratch, shape):
    """Write a key into column ``slot`` of its block, transposed."""
    if value(shape.k_codec) == CODEC_BF16:
        store(work, scratch, f32_to_bf16(load_f32(work, at, shape.dim)))
        for d in range(value(shape.dim)):
            put_u16(cache, block + (d // 2 * BLOCK_TOKENS + slot) * 4 + d % 2 * 2, get_u16(work, scratch + d * 2))
    else:
        for d in range(value(shape.dim)):
            put_f32(cache, block + (d * BLOCK_TOKENS + slot) * 4, get_f32(work, at + d * 4))


@inline
def write_value(work, at, cache, block, slot, scratch, shape):
    """Write a value into its slot; two tokens' bf16 stand side by side."""
    if value(shape.v_codec) == CODEC_BF16:
        store(work, scratch, f32_to_bf16(load_f32(work, at, shape.dim)))
        for d in range(value(shape.dim)):
            put_u16(
                cache, block + ((slot // 2 * value(shape.dim) + d) * 2 + slot % 2) * 2, get_u16(work, scratch + d * 2)
            )
    else:
        store(cache, block + slot * value(shape.dim) * 4, load_f32(work, at, shape.dim))


@inline
def check_finite(work, at, line, shape):
    """Set the status where one of a head's numbers is NaN or infinite."""
    check = zero_f32(1, LANES)
    for i in range(0, value(shape.dim), LANES):
        check = fma(load_f32(work, at + i * 4, LANES), splat_f32(ZERO, LANES), check)
    if sum_lanes(check) != ZERO:
        report(work, line)


@inline
def append(chunk, thread, line, program, table, weights, cache, work, shape):
    """A chunk is a row and a KV head: its queries are prepared, its key and value written into the row's slot."""
    kv_heads, share = program[line, AP.kv_heads], program[line, AP.share]
    row, kv_head = chunk // kv_heads, chunk % kv_heads
    size = value(shape.dim) * 4
    qkv = program[line, AP.qkv] + row * program[line, AP.qkv_stride]
    angles, turned = program[line, AP.angles] + row * program[line, AP.angles_stride], program[line, AP.turned]
    eps = get_f32(weights, program[line, AP.eps])
    scale = get_f32(weights, program[line, AP.scale])
    q_out = program[line, AP.q] + kv_head * program[line, AP.q_head] + row * share * size
    for g in range(share):
        head = qkv + (kv_head * share + g) * size
        prepare(work, head, q_out + g * size, angles, turned, weights, program[line, AP.q_norm], eps, scale, shape)
        check_finite(work, q_out + g * size, line, shape)
    key = table[SCRATCH] + thread * table[SCRATCH_STRIDE]
    k_in, v_in = qkv + (kv_heads * share + kv_head) * size, qkv + (kv_heads * share + kv_heads + kv_head) * size
    prepare(work, k_in, key, angles, turned, weights, program[line, AP.k_norm], eps, np.float32(1), shape)
    check_finite(work, key, line, shape)
    check_finite(work, v_in, line, shape)
    cell = table[table[GROUPS + 2 * program[line, AP.group]] + row]
    block, column = cell // BLOCK_TOKENS, cell % BLOCK_TOKENS
    k_block = program[line, AP.k] + kv_head * program[line, AP.k_head] + block * program[line, AP.k_block]
    write_key(work, key, cache, k_block, column, key + size, shape)
    v_block = program[line, AP.v] + kv_head * program[line, AP.v_head] + block * program[line, AP.v_block]
    write_value(work, v_in, cache, v_block, column, key + size, shape)


def append_kernel(dim: int, k_codec: int, v_codec: int) -> Any:
    """The kernel that prepares q and writes K and V, for one head dim and one way of storing them."""

    @kernel(SIGNATURE)
    def run_append(chunk, thread, line, program, table, weights, cache, work):
        shape = Shape(static(dim), static(k_codec), static(v_codec))
        append(chunk, thread, line, program, table, weights, cache, work, shape)

    return run_append
