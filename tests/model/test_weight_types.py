"""Every type of a GGUF file, from its blocks to products: what is kept exactly, and what rounding to 8 bits may move.

The gguf package's dequantiser says which numbers the blocks hold; random bytes stand in for a quantiser, which most
types have only in llama.cpp.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny.blocks import CONVERTED_TYPES, WEIGHT_TYPES, Packed, random_blocks
from tiny.held import allowed, load, numbers, rounding
from tiny.stream import Stream

from kvist.checkpoint.files import COMPOSED_TYPES, READABLE_TYPES, TensorInfo
from kvist.errors import CheckpointError
from kvist.kernels.layout import GROUP, PANEL_ROWS
from kvist.model import kept, weights

Array = np.ndarray[Any, Any]
ROWS, COLUMNS = 37, 512


def test_every_readable_type_has_a_form() -> None:
    assert {*READABLE_TYPES, *COMPOSED_TYPES} == set(kept.KEPT_AS)
    assert set(CONVERTED_TYPES) == {*kept.EXACT_AS_Q8, *kept.CODES_AS_Q8, *kept.ROUNDED_TO_Q8}
    assert {*WEIGHT_TYPES, "q4_k"} == set(kept.AS_IT_IS)


@pytest.mark.parametrize("weight_type", CONVERTED_TYPES)
def test_blocks_become_8_bits(weight_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "NUMBERS_AT_ONCE", 16 * COLUMNS)  # several pieces
    blocks = random_blocks(weight_type, ROWS, COLUMNS, 3)
    found = numbers(*load(blocks))
    assert found.shape == blocks.values.shape
    assert np.abs(blocks.values).max() > 0.005
    assert (np.abs(found - blocks.values) <= allowed(blocks)).all()


@pytest.mark.parametrize("weight_type", ["q5_0", "q6_k"])
def test_rows_in_another_order(weight_type: str) -> None:
    """As q and k of a llama file are packed, whose rows stand in pairs."""
    order = np.argsort(Stream(2, "order").normal((ROWS,)))
    blocks = random_blocks(weight_type, ROWS, COLUMNS, 4)
    assert np.array_equal(numbers(*load(blocks, order)), numbers(*load(blocks))[order])


@pytest.mark.parametrize(
    ("largest", "values"),
    [
        (1.0, [1.0, -1.0, 0.5, 1 / 254 + 1e-6, 0.0, -0.0]),
        (65504 * 127.0, [65504 * 127.0, -1e6, 3.0]),
        (2.0**-20, [2.0**-20, 2.0**-21]),  # a scale below the smallest normal f16
        (2.0**-30, [2.0**-30]),  # none at all
        (0.0, [0.0]),
    ],
)
def test_extreme_numbers_in_8_bits(largest: float, values: list[float]) -> None:
    rows = np.zeros((ROWS, COLUMNS), np.float32)
    rows[:, 100 : 100 + len(values)] = values
    found = numbers(*load(Packed("f32", rows.view(np.uint8).reshape(-1), rows), form="q8"))
    assert (np.abs(found - rows) <= rounding(rows)).all(), largest
    assert np.array_equal(found, numbers(*load(Packed("f32", rows.view(np.uint8).reshape(-1), rows), form="q8")))


def test_scales_round_to_the_nearest_half() -> None:
    """The scale of a group whose largest is 127 x is x as NumPy rounds it, to even where two are as near."""
    largest = np.abs(
        Stream(5, "largest").normal((ROWS, COLUMNS // GROUP)) * 10.0 ** Stream(5, "size").normal((ROWS, 16))
    )
    ties = (1 + (2 * np.arange(16) + 1) / 2048).astype(np.float32)
    largest = np.concatenate([largest[:-2], ties[None], ties[None] * np.float32(2**-13)]).astype(np.float32)
    rows = np.zeros((ROWS, COLUMNS // GROUP, GROUP), np.float32)
    rows[..., 7] = largest * np.float32(127)
    rows = rows.reshape(ROWS, COLUMNS)
    matrix, arena = load(Packed("f32", rows.view(np.uint8).reshape(-1), rows), form="q8")
    groups = arena[matrix.offset : matrix.offset + matrix.num_bytes].reshape(matrix.num_panels, -1, 544)
    scales = groups[..., 512:].copy().view(np.float16).swapaxes(1, 2).reshape(-1, COLUMNS // GROUP)[:ROWS]
    expected = (rows.reshape(ROWS, -1, GROUP)[..., 7] / np.float32(127)).astype(np.float16)
    assert np.array_equal(scales, expected)


@pytest.mark.filterwarnings("ignore:invalid value")  # of NumPy, where it stands in for the compiler
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e9])
def test_what_8_bits_cannot_hold_is_refused(bad: float) -> None:
    rows = np.ones((ROWS, COLUMNS), np.float32)
    rows[3, 40] = bad
    with pytest.raises(CheckpointError, match=r'tensor "w" holds NaN, infinity .* in 1 groups of 32'):
        load(Packed("f32", rows.view(np.uint8).reshape(-1), rows), form="q8")


@pytest.mark.parametrize("weight_type", ["q6_k", "iq2_xs", "mxfp4"])
def test_other_forms_on_request(weight_type: str) -> None:
    """``--weights f32`` keeps the very numbers of any type."""
    blocks = random_blocks(weight_type, ROWS, COLUMNS, 5)
    matrix, arena = load(blocks, form="f32")
    panels = arena[matrix.offset : matrix.offset + matrix.num_bytes].view(np.float32)
    found = panels.reshape(matrix.num_panels, COLUMNS, PANEL_ROWS).swapaxes(1, 2).reshape(-1, COLUMNS)[:ROWS]
    assert np.array_equal(found, blocks.values)


def test_memory_that_types_take() -> None:
    tensors = [
        TensorInfo("a", "q6_k", (32, 512), 32 * 420),
        TensorInfo("b", "q6_k", (16, 256), 16 * 210),
        TensorInfo("c", "q8_0", (16, 64), 16 * 68),
        TensorInfo("norm", "f32", (512,), 2048),
        TensorInfo("mask", "i8", (512,), 512),
    ]
    found = {item.type: (item.form, item.file_bytes, item.kept_bytes) for item in kept.kept(tensors)}
    assert found == {
        "q6_k": ("q8_0", 32 * 420 + 16 * 210, 32 * 544 + 16 * 272),
        "q8_0": ("q8_0", 16 * 68, 16 * 68),
        "f32": ("f32", 2048, 2048),
    }
    line = kept.notice(tensors)
    assert line == "weights of type q6_k become 8 bits: 21.25 KiB in memory, 16.41 KiB in the file"
    assert kept.notice(tensors[2:]) is None
