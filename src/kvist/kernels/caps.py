"""Soft caps: numbers kept between -cap and cap by cap * tanh(x / cap), of attention scores and of logits (Gemma 2)."""

from __future__ import annotations

from typing import Any

from kvist.kernels.elementwise import ONE, F, exp
from kvist.kernels.jit import SIGNATURE, called, inline, kernel
from kvist.kernels.layout import LANES, SPAN_BLOCKS, fields
from kvist.kernels.simd import add, div, get_f32, load_f32, mul, splat_f32, store, sub, value
from kvist.kernels.spans import SCORE_BYTES

TWO = F(2)

CAP = fields("x stride width segment cap")


@inline
def capped(x, cap):
    """cap * tanh(x / cap), the tanh as 1 - 2 / (1 + e^(2y)): within a unit in the last place of 1."""
    power = exp(mul(div(x, cap), splat_f32(TWO, LANES)))
    return mul(cap, sub(splat_f32(ONE, LANES), div(splat_f32(TWO, LANES), add(power, splat_f32(ONE, LANES)))))


@called
def cap_scores(work, scores, first, last, cap, rows):
    """Cap the scores of blocks ``first`` to ``last`` - 1 of one span, [rows][256] at ``scores``."""
    limit = splat_f32(cap, LANES)
    for r in range(value(rows)):
        for b in range(first, last):
            at = scores + r * SCORE_BYTES + b % SPAN_BLOCKS * 64
            store(work, at, capped(load_f32(work, at, LANES), limit))


def cap_kernel() -> Any:
    """The kernel that caps logits in place; a chunk is a segment of a row (a multiple of 16 columns)."""

    @kernel(SIGNATURE)
    def run_cap(chunk, thread, line, program, table, weights, cache, work):
        width, segment = program[line, CAP.width], program[line, CAP.segment]
        segments = (width + segment - 1) // segment
        at, first = program[line, CAP.x] + chunk // segments * program[line, CAP.stride], chunk % segments * segment
        limit = splat_f32(get_f32(weights, program[line, CAP.cap]), LANES)
        for i in range(first, min(first + segment, width), LANES):
            store(work, at + i * 4, capped(load_f32(work, at + i * 4, LANES), limit))

    return run_cap
