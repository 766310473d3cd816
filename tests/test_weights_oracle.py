"""Packed weights times a vector: the products of the gguf package's dequantised weights, but for float rounding."""

from __future__ import annotations

import numpy as np
import pytest
from tiny.blocks import FOUR_BIT_TYPES, WEIGHT_TYPES, packed, unpacked, wild
from tiny.products import BLOCK_TYPES, check
from tiny.stream import Stream

from kvist.kernels.layout import padded

SCALE_BYTES = {"q8_0": 2, "q4_0": 2, "q4_1": 4, "q4_z": 3, "q4_k": 0}  # before a group's codes


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
