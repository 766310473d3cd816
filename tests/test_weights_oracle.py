"""Packed weights times a vector equal the gguf package's dequantised weights times the same vector, to float rounding.

The vector is what the kernel multiplies with: int8 with a scale per 32 for block types, f32 for the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny.blocks import FOUR_BIT_TYPES, WEIGHT_TYPES, Packed, packed, unpacked, wild
from tiny.stream import Stream

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

BLOCK_TYPES = ("q8_0", "q4_0", "q4_1", "q4_z", "q4_k")
SCALE_BYTES = {"q8_0": 2, "q4_0": 2, "q4_1": 4, "q4_z": 3, "q4_k": 0}  # before a group's codes
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


def product(weights: Packed, x: Array, rows: int) -> Array:
    """[T, rows] by the compiled kernel."""
    width, is_quantised = x.shape[1], weights.type in BLOCK_TYPES
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
    kernel = matmul.matmul_kernel(matmul.FORMS[weights.type])
    kernel(0, 0, 0, program, table, panels(weights, rows, width), np.zeros(64, np.uint8), work)
    return work[source.size : scratch].view(np.float32).reshape(len(x), -1)[:, :rows]


def check(weights: Packed, rows: int, x: Array) -> None:
    """Rounding: each of a row's terms (a group's dot, or a product) and each partial sum is rounded once or twice."""
    exact = x.astype(np.float64)
    if weights.type in BLOCK_TYPES:
        codes, scales = quantised(x)
        exact = (codes.astype(np.float64) * scales[..., None]).reshape(x.shape)
    values = weights.values.astype(np.float64)
    size = np.abs(exact) @ np.abs(values).T
    if weights.type in ("q4_1", "q4_z", "q4_k"):  # scale and minimum are two terms, maybe larger than their sum
        size += 32 * np.abs(exact).max(axis=-1, keepdims=True) * np.abs(values).max(axis=-1)
    num_terms = x.shape[1] // GROUP if weights.type in BLOCK_TYPES else x.shape[1]
    error = np.abs(product(weights, x, rows) - exact @ values.T)
    allowed = (num_terms + 4) * 2.0**-24 * size + 1e-30
    assert (error <= allowed).all(), (weights.type, (error / allowed).max())


@pytest.mark.parametrize("weight_type", WEIGHT_TYPES + FOUR_BIT_TYPES)
@pytest.mark.parametrize(("rows", "columns"), [(16, 32), (33, 96), (100, 576)])
def test_quantised_weights(weight_type: str, rows: int, columns: int) -> None:
    columns = padded(columns, 256) if weight_type == "q4_k" else columns
    weights = packed(weight_type, rows, columns, seed=rows)
    for num_vectors in (1, 2, 11):
        check(weights, rows, Stream(num_vectors, "x").normal((num_vectors, columns)))


@pytest.mark.parametrize("weight_type", BLOCK_TYPES)
@pytest.mark.parametrize("seed", range(4))
def test_any_blocks_that_a_file_may_hold(weight_type: str, seed: int) -> None:
    rows, columns = 48, 256 if weight_type == "q4_k" else 160
    check(wild(weight_type, rows, columns, seed), rows, Stream(seed, "x").normal((5, columns)))


@pytest.mark.parametrize("weight_type", BLOCK_TYPES)
def test_largest_codes_do_not_saturate(weight_type: str) -> None:
    """All vector codes at -127 or 127 and all weights at an end of their range: where saturating sums would show."""
    weights = wild(weight_type, 16, 256, 9)
    raw = weights.raw.reshape(16, 8, -1).copy()
    raw[..., SCALE_BYTES[weight_type] :] = 0x80 if weight_type == "q8_0" else 0xFF
    if weight_type == "q4_k":
        raw = weights.raw.reshape(16, 1, -1).copy()
        raw[..., 4:] = 0xFF  # all codes 15, all small numbers 63
    signs = np.where(Stream(1, "signs").normal((3, 256)) < 0, -1, 1).astype(np.float32)
    for x in (np.ones((3, 256), np.float32), -np.ones((3, 256), np.float32), signs):
        check(unpacked(weight_type, raw, 16, 256), 16, x)
