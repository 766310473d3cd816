"""What a layer's branch gives, added to the residual stream: normed first, scaled, or both. And norms within a row."""

from __future__ import annotations

from typing import Any

from kvist.kernels.elementwise import (
    LAYER,
    ZERO,
    inverse_root,
    mean_of,
    mean_square,
    norm_row,
    padded_width,
)
from kvist.kernels.jit import SIGNATURE, inline, kernel
from kvist.kernels.layout import LANES, SCRATCH, SCRATCH_STRIDE, fields
from kvist.kernels.simd import add, get_f32, load_f32, mul, splat_f32, static, store, sub, value

RES = fields("x stride branch branch_stride width weight bias eps scale")

PART = fields("x stride parts width weight weight_stride eps")


@inline
def add_branch(row, thread, line, program, table, weights, work, kind):
    """x += scale * norm(branch), for one row."""
    width, eps = program[line, RES.width], get_f32(weights, program[line, RES.eps])
    branch = program[line, RES.branch] + row * program[line, RES.branch_stride]
    normed = table[SCRATCH] + thread * table[SCRATCH_STRIDE]
    norm_row(work, branch, width, weights, program[line, RES.weight], program[line, RES.bias], eps, normed, kind)
    x, scale = program[line, RES.x] + row * program[line, RES.stride], get_f32(weights, program[line, RES.scale])
    for i in range(0, padded_width(width), LANES):
        gain = mul(load_f32(work, normed + i * 4, LANES), splat_f32(scale, LANES))
        store(work, x + i * 4, add(load_f32(work, x + i * 4, LANES), gain))


@inline
def norm_part(work, at, width, weights, weight, eps, kind):
    """Norm of ``width`` columns in place, a multiple of 16; there is no bias."""
    mean = mean_of(work, at, width) if value(kind) == LAYER else ZERO
    factor = splat_f32(inverse_root(mean_square(work, at, width, mean) + eps), LANES)
    for i in range(0, width, LANES):
        x = mul(sub(load_f32(work, at + i * 4, LANES), splat_f32(mean, LANES)), factor)
        store(work, at + i * 4, mul(x, load_f32(weights, weight + i * 4, LANES)))


def residual_kernel(kind: int) -> Any:
    """The kernel that adds a branch, normed in one way or not at all; a chunk is a row."""

    @kernel(SIGNATURE)
    def run_residual(chunk, thread, line, program, table, weights, cache, work):
        add_branch(chunk, thread, line, program, table, weights, work, static(kind))

    return run_residual


def parts_kernel(kind: int) -> Any:
    """The kernel that norms parts of a row, each with weights of its own; a chunk is a part of a row."""

    @kernel(SIGNATURE)
    def run_parts(chunk, thread, line, program, table, weights, cache, work):
        parts, width = program[line, PART.parts], program[line, PART.width]
        row, part = chunk // parts, chunk % parts
        at = program[line, PART.x] + row * program[line, PART.stride] + part * width * 4
        weight = program[line, PART.weight] + part * program[line, PART.weight_stride]
        norm_part(work, at, width, weights, weight, get_f32(weights, program[line, PART.eps]), static(kind))

    return run_parts
