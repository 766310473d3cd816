"""The largest logit of each segment of a row, so that whoever chooses a token needn't read all of the vocabulary."""

from __future__ import annotations

from typing import Any

from kvist.kernels.elementwise import ZERO
from kvist.kernels.jit import SIGNATURE, inline, kernel
from kvist.kernels.layout import LANES, fields
from kvist.kernels.simd import (
    fma,
    keep_lanes,
    load_f32,
    max_lanes,
    maximum,
    put_f32,
    splat_f32,
    sum_lanes,
    zero_f32,
)
from kvist.kernels.spans import LOWEST

SEGMENT = 512
"""Columns of a segment."""

PEAKS = fields("x stride width out out_stride segments chunk_segments")
"""``segments`` of a row, of which a chunk takes ``chunk_segments``."""


@inline
def peak_of(work, at, first, width):
    """The largest of a segment's numbers from column ``first`` on; NaN where one of them is NaN or +infinity."""
    lowest, check = splat_f32(LOWEST, LANES), zero_f32(1, LANES)
    largest = lowest
    for i in range(first, min(first + SEGMENT, width), LANES):
        x = maximum(lowest, keep_lanes(load_f32(work, at + i * 4, LANES), i, 0, width, LOWEST))  # NaN stays NaN
        check = fma(x, splat_f32(ZERO, LANES), check)
        largest = maximum(x, largest)
    return max_lanes(largest) + sum_lanes(check)


def peaks_kernel() -> Any:
    """The kernel that writes the largest number of each segment, [row][segment] f32: NaN where one is NaN or +infinity.

    A chunk is some segments of a row.
    """

    @kernel(SIGNATURE)
    def run_peaks(chunk, thread, line, program, table, weights, cache, work):
        segments, step = program[line, PEAKS.segments], program[line, PEAKS.chunk_segments]
        parts, width = (segments + step - 1) // step, program[line, PEAKS.width]
        row, first = chunk // parts, chunk % parts * step
        at = program[line, PEAKS.x] + row * program[line, PEAKS.stride]
        out = program[line, PEAKS.out] + row * program[line, PEAKS.out_stride]
        for segment in range(first, min(first + step, segments)):
            put_f32(work, out + segment * 4, peak_of(work, at, segment * SEGMENT, width))

    return run_peaks
