"""Rotary positions (Su et al., 2021): this pass's cosines and sines, by fixed arithmetic of our own.

The angle is position x frequency in f32, as the reference implementations have it; its sine and cosine are computed in
f64 with the C library's polynomials (Sun's fdlibm) and rounded to f32. No table is kept, and none is limited in length.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvist.kernels.jit import SIGNATURE, inline, kernel
from kvist.kernels.layout import CAPPED, POSITIONS, fields
from kvist.kernels.simd import get_f32, put_f32

ROPE = fields("frequencies count factor out out_stride sink_out")

TWO_BY_PI = 6.36619772367581382433e-01
HALF_PI_1, HALF_PI_2, HALF_PI_3 = 1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624879595063154e-21
"""pi / 2 in three parts of 33 bits, so that the first two products with a count below 2^20 are exact."""
S1, S2, S3 = -1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04
S4, S5, S6 = 2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10
C1, C2, C3 = 4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05
C4, C5, C6 = -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11


@inline
def sine_and_cosine(angle):
    """(sin, cos) of an f64 angle between 0 and a million radians, within a unit in the last place."""
    count = np.int64(angle * TWO_BY_PI + 0.5)
    n = np.float64(count)
    r = ((angle - n * HALF_PI_1) - n * HALF_PI_2) - n * HALF_PI_3
    z = r * r
    sine = r + r * z * (S1 + z * (S2 + z * (S3 + z * (S4 + z * (S5 + z * S6)))))
    cosine = 1.0 - (0.5 * z - z * z * (C1 + z * (C2 + z * (C3 + z * (C4 + z * (C5 + z * C6))))))
    quarter = count % 4
    if quarter == 0:
        return sine, cosine
    if quarter == 1:
        return cosine, -sine
    if quarter == 2:
        return -sine, -cosine
    return -cosine, sine


@inline
def rotary_row(position, out, line, program, weights, work):
    """Write [count] cosines, then [count] sines of a position."""
    count, factor = program[line, ROPE.count], get_f32(weights, program[line, ROPE.factor])
    position = np.float32(position)
    for i in range(count):
        angle = position * get_f32(weights, program[line, ROPE.frequencies] + i * 4)
        sine, cosine = sine_and_cosine(np.float64(angle))
        put_f32(work, out + i * 4, np.float32(cosine) * factor)
        put_f32(work, out + (count + i) * 4, np.float32(sine) * factor)


def rotary_kernel() -> Any:
    """The kernel that computes cosines and sines; a chunk is a row. Of capped positions too, where the pass has any."""

    @kernel(SIGNATURE)
    def run_rotary(chunk, thread, line, program, table, weights, cache, work):
        at = chunk * program[line, ROPE.out_stride]
        rotary_row(table[table[POSITIONS] + chunk], program[line, ROPE.out] + at, line, program, weights, work)
        if table[CAPPED]:
            rotary_row(table[table[CAPPED] + chunk], program[line, ROPE.sink_out] + at, line, program, weights, work)

    return run_rotary
