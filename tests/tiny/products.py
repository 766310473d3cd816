"""Products of packed weights by the compiled kernel, held to the numbers that the weights stand for.

The vector is what the kernel multiplies with: int8 with a scale per 32 for block types, f32 for the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvist.kernels import matmul, packing
from kvist.kernels.layout import (
    FIELDS,
    GROUP,
    GROUP_BYTES,
    NUM_ROWS,
    PANEL_ROWS,
    SCRATCH,
    TABLE_HEAD,
    padded,
    quantised_row_bytes,
)
from kvist.kernels.static import Static
from kvist.model.convert import row_bytes
from tiny.blocks import Packed

BLOCK_TYPES = ("q8_0", "q4_0", "q4_1", "q4_z", "q4_k")
Array = np.ndarray[Any, Any]


def panels(weights: Packed, rows: int, columns: int) -> Array:
    """The matrix as the kernel takes it, its rows filled up to whole panels."""
    num_bytes = padded(rows, PANEL_ROWS) // PANEL_ROWS * (padded(columns) // GROUP) * GROUP_BYTES[weights.type]
    arena, order = np.zeros(num_bytes, np.uint8), np.full(padded(rows, PANEL_ROWS), -1, np.int64)
    order[:rows] = np.arange(rows)
    raw = weights.raw.copy()
    raw.flags.writeable = False
    source_row = row_bytes(weights.type, columns)
    packing.pack(
        raw, source_row, order, columns, arena, 0, 0, order.size // PANEL_ROWS, Static(matmul.FORMS[weights.type])
    )
    return arena


def quantised(x: Array) -> tuple[Array, Array]:
    """Vectors as int8 with a scale per group: (codes int8 [T, groups, 32], scales f32 [T, groups])."""
    groups = x.reshape(len(x), -1, GROUP)
    largest = np.abs(groups).max(axis=-1)
    codes = np.rint(groups * (np.float32(127) / largest)[..., None]).clip(-127, 127).astype(np.int8)
    return codes, largest / np.float32(127)


def as_work(x: Array, is_quantised: bool) -> Array:
    """The vectors' bytes as the kernel reads them, a row each."""
    if not is_quantised:
        return x.view(np.uint8)
    codes, scales = quantised(x)
    sums = codes.astype(np.int32).sum(axis=-1, dtype=np.int32)
    parts = (codes.reshape(len(x), -1), scales, sums, scales * sums.astype(np.float32))
    return np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts], axis=1)


def product(form: str, panels: Array, x: Array, rows: int) -> Array:
    """[T, rows] by the compiled kernel, of a matrix packed in one form."""
    width, is_quantised = x.shape[1], form in BLOCK_TYPES
    source, out_stride = as_work(x, is_quantised), 4 * padded(rows, PANEL_ROWS)
    assert source.shape[1] == (quantised_row_bytes(width) if is_quantised else 4 * width)
    scratch = source.size + len(x) * out_stride
    work = np.concatenate([source.reshape(-1), np.zeros(len(x) * out_stride + matmul.scratch_bytes(width), np.uint8)])
    settings = {
        "w": 0,
        "panels": padded(rows, PANEL_ROWS) // PANEL_ROWS,
        "width": width,
        "x": 0,
        "x_stride": source.shape[1],
        "out": source.size,
        "out_stride": out_stride,
        "bias": -1,
        "adds": 0,
        "is_last": 0,
        "chunk_panels": padded(rows, PANEL_ROWS) // PANEL_ROWS,
        "chunk_rows": len(x),
        "stride_panels": 2,
    }
    program, table = np.zeros((1, FIELDS), np.int64), np.zeros(TABLE_HEAD, np.int64)
    for name, setting in settings.items():
        program[0, getattr(matmul.MM, name)] = setting
    table[NUM_ROWS], table[SCRATCH] = len(x), scratch
    kernel = matmul.matmul_kernel(matmul.FORMS[form])
    kernel(0, 0, 0, program, table, panels, np.zeros(64, np.uint8), work)
    return work[source.size : scratch].view(np.float32).reshape(len(x), -1)[:, :rows]


def check(weights: Packed, rows: int, x: Array) -> None:
    """The kernel's products of a matrix in a form of its own are those of its numbers."""
    check_panels(weights.type, panels(weights, rows, x.shape[1]), weights.values, x)


def check_panels(form: str, panels: Array, values: Array, x: Array) -> None:
    """Rounding: each of a row's terms (a group's dot, or a product) and each partial sum is rounded once or twice."""
    exact = x.astype(np.float64)
    if form in BLOCK_TYPES:
        codes, scales = quantised(x)
        exact = (codes.astype(np.float64) * scales[..., None]).reshape(x.shape)
    numbers = values.astype(np.float64)
    size = np.abs(exact) @ np.abs(numbers).T
    if form in ("q4_1", "q4_z", "q4_k"):  # scale and minimum are two terms, maybe larger than their sum
        size += 32 * np.abs(exact).max(axis=-1, keepdims=True) * np.abs(numbers).max(axis=-1)
    num_terms = x.shape[1] // GROUP if form in BLOCK_TYPES else x.shape[1]
    error = np.abs(product(form, panels, x, len(values)) - exact @ numbers.T)
    allowed = (num_terms + 4) * 2.0**-24 * size + 1e-30
    assert (error <= allowed).all(), (form, (error / allowed).max())
