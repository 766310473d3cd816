"""Blocks that llama.cpp's quantiser made (recorded: tests/oracles_llamacpp/record_weights.py), type by type.

Their numbers by the gguf package's dequantiser are llama.cpp's, and what kvist makes of them multiplies as these.
"""

from __future__ import annotations

import numpy as np
import pytest
from tiny.blocks import CONVERTED_TYPES, WEIGHT_TYPES, unpacked
from tiny.held import check_type
from tiny.recorded import DATA
from tiny.stream import Stream

from kvist.checkpoint.ggml_types import BY_NAME

FILE = DATA / "llamacpp_blocks.npz"
NUM_ROWS = 4
TYPES = tuple(sorted({*WEIGHT_TYPES, "q4_k", *CONVERTED_TYPES} - {"f32", "nvfp4"}))


def test_all_types_that_llamacpp_makes_are_recorded() -> None:
    with np.load(FILE, allow_pickle=False) as recorded:
        assert {name.split("/")[0] for name in recorded} == set(TYPES)


@pytest.mark.parametrize("weight_type", TYPES)
def test_blocks(weight_type: str) -> None:
    with np.load(FILE, allow_pickle=False) as recorded:
        raw, products = recorded[f"{weight_type}/raw"], recorded[f"{weight_type}/products"]
    kind = BY_NAME[weight_type]
    columns = raw.size // NUM_ROWS // kind.block_bytes * kind.block_elements
    blocks = unpacked(weight_type, raw, NUM_ROWS, columns)
    x = Stream(1, weight_type).normal((columns,)).astype(np.float64)
    size = np.abs(blocks.values.astype(np.float64)) @ np.abs(x)
    assert (np.abs(blocks.values.astype(np.float64) @ x - products) <= 2.0**-22 * size).all()
    check_type(blocks, Stream(2, weight_type).normal((3, columns)))


def test_recordings_stay_small() -> None:
    assert FILE.stat().st_size < 60_000
