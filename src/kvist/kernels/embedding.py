"""One row of the embedding matrix, read from the panels that the output matrix shares, as f32.

A chunk is a row of the pass. Each number is multiplied with ``scale``; where positions are learned, their row is added.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvist.kernels.jit import SIGNATURE, inline, kernel
from kvist.kernels.layout import GROUP, PANEL_ROWS, POSITIONS, TOKENS, fields
from kvist.kernels.matmul import (
    BF16,
    F16,
    F32,
    K_BYTES,
    K_GROUPS,
    Q4_1,
    Q4_K,
    Q4_Z,
    Q8_0,
    Q8_0_BYTES,
    panel_bytes,
    q4_group,
)
from kvist.kernels.simd import (
    bf16_to_f32,
    first_lane,
    get_f32,
    get_i8,
    half_to_f32,
    load_u16,
    put_f32,
    static,
    value,
)

EM = fields("w width padded out out_stride positions scale")


@inline
def half_at(weights, at):
    """The f16 at ``at`` as f32."""
    return first_lane(half_to_f32(load_u16(weights, at, 1)))


@inline
def quantised_element(weights, panel, lane, k, form):
    """See ``element``."""
    group, i = k // GROUP, k % GROUP
    if value(form) == Q8_0:
        at = panel + group * Q8_0_BYTES
        q = np.float32(np.int32(np.uint8(get_i8(weights, at + i // 4 * 64 + lane * 4 + i % 4))) - 128)
        return q * half_at(weights, at + 512 + lane * 2)
    at = q4_group(panel, group, form)
    pair = np.int32(np.uint8(get_i8(weights, at + i // 8 * 64 + lane * 4 + i % 4)))
    nibble = pair >> 4 if i % 8 >= 4 else pair & 15
    if value(form) == Q4_K:
        block = panel + group // K_GROUPS * K_BYTES + lane * 2
        scale = half_at(weights, block) * np.float32(get_i8(weights, at + 256 + lane))
        return np.float32(nibble) * scale + half_at(weights, block + 32) * np.float32(get_i8(weights, at + 272 + lane))
    scale = half_at(weights, at + 256 + lane * 2)
    if value(form) == Q4_1:
        return np.float32(nibble) * scale + half_at(weights, at + 288 + lane * 2)
    if value(form) == Q4_Z:
        return np.float32(nibble + get_i8(weights, at + 288 + lane)) * scale
    return np.float32(nibble - 8) * scale


@inline
def element(weights, panel, lane, k, form):
    """Input ``k`` of row ``lane`` of a panel, as f32."""
    if value(form) == F32:
        return get_f32(weights, panel + (k * PANEL_ROWS + lane) * 4)
    if value(form) == F16:
        return half_at(weights, panel + (k * PANEL_ROWS + lane) * 2)
    if value(form) == BF16:
        return first_lane(bf16_to_f32(load_u16(weights, panel + (k // 2 * PANEL_ROWS + lane) * 4 + k % 2 * 2, 1)))
    return quantised_element(weights, panel, lane, k, form)


@inline
def embed(row, line, program, table, weights, work, form):
    """Write one row's embedding, [width] f32; its learned position, where there is one, is added."""
    token = table[table[TOKENS] + row]
    width = program[line, EM.width]
    panel = program[line, EM.w] + token // PANEL_ROWS * panel_bytes(program[line, EM.padded], form)
    out = program[line, EM.out] + row * program[line, EM.out_stride]
    learned, scale = program[line, EM.positions], get_f32(weights, program[line, EM.scale])
    if learned >= 0:
        learned += table[table[POSITIONS] + row] * width * 4
    for k in range(width):
        x = element(weights, panel, token % PANEL_ROWS, k, form) * scale
        if learned >= 0:
            x += get_f32(weights, learned + k * 4)
        put_f32(work, out + k * 4, x)


def embedding_kernel(form: int) -> Any:
    """The kernel that looks rows up in an embedding of one form."""

    @kernel(SIGNATURE)
    def run_embedding(chunk, thread, line, program, table, weights, cache, work):
        embed(chunk, line, program, table, weights, work, static(form))

    return run_embedding
