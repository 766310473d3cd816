"""What a matrix of any weight type becomes in memory, and by how much rounding to 8 bits may move its numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kvist.checkpoint.files import TensorInfo
from kvist.kernels.layout import GROUP, PANEL_ROWS
from kvist.model import kept
from kvist.model.weights import Matrix, Packer
from tiny.blocks import Packed
from tiny.products import check, check_panels

Array = np.ndarray[Any, Any]


class OneTensor:
    """A checkpoint of one matrix, ``w``."""

    format = "gguf"
    path = Path("w.gguf")

    def __init__(self, blocks: Packed) -> None:
        raw = blocks.raw.copy()
        raw.flags.writeable = False
        self.composed: dict[str, Any] = {}
        self.tensors = {"w": TensorInfo("w", blocks.type, blocks.values.shape, raw.size)}
        self.blocks = raw

    def raw(self, name: str) -> Array:
        assert name == "w"
        return self.blocks


def load(blocks: Packed, rows: Array | None = None, form: str | None = None) -> tuple[Matrix, Array]:
    """The matrix as it is packed: where, and the arena."""
    checkpoint = OneTensor(blocks)
    packer = Packer(checkpoint, form, "")  # type: ignore[arg-type]
    part = packer.part("w", *blocks.values.shape, None if rows is None else lambda: rows)
    [(matrix, first_row)] = packer.matrices([part], blocks.values.shape[1], [None])
    assert first_row == 0
    return matrix, packer.fill(2)


def numbers(matrix: Matrix, arena: Array) -> Array:
    """What the 8-bit panels hold [num_rows, width], by the layout that kernels.matmul documents."""
    assert matrix.form == "q8_0"
    groups = arena[matrix.offset : matrix.offset + matrix.num_bytes].reshape(matrix.num_panels, -1, 544)
    codes = groups[..., :512].reshape(matrix.num_panels, -1, 8, PANEL_ROWS, 4).transpose(0, 3, 1, 2, 4)
    scales = groups[..., 512:].copy().view(np.float16).astype(np.float32).swapaxes(1, 2)
    values = (codes.reshape(*scales.shape, GROUP).astype(np.float32) - 128) * scales[..., None]
    return values.reshape(-1, matrix.width)[: matrix.num_rows]


def rounding(values: Array) -> Array:
    """By how much 8 bits may move each number: half a step, where the step is the 16-bit scale.

    The scale is the group's largest / 127, rounded by at most 2^-11 of itself: half a step is largest / 254 x (1 +
    2^-11), and the largest itself, whose code is held to 127, may lack that 2^-11 instead. Scales below 2^-14 have
    steps of 2^-24.
    """
    largest = np.abs(values.reshape(len(values), -1, GROUP)).max(axis=-1)
    step = np.maximum(largest / 254 * (1 + 2**-11), largest * 2**-11) + 127 * 2.0**-25
    return np.repeat(step, GROUP, axis=1)


def allowed(blocks: Packed) -> Array:
    """By how much each number may be another than the file's: not at all, by its scale's rounding, by half a step."""
    if blocks.type in kept.EXACT_AS_Q8:
        return np.zeros_like(blocks.values)
    if blocks.type in kept.CODES_AS_Q8:
        return np.abs(blocks.values) * 2.0**-11 + 127 * 2.0**-25
    return rounding(blocks.values)


def check_type(blocks: Packed, x: Array) -> None:
    """The matrix becomes the file's numbers, no further off than 8 bits may move them, and its products are theirs."""
    if blocks.type in kept.AS_IT_IS:
        check(blocks, len(blocks.values), x)
        return
    matrix, arena = load(blocks)
    found = numbers(matrix, arena)
    assert found.shape == blocks.values.shape
    assert (np.abs(found - blocks.values) <= allowed(blocks)).all(), blocks.type
    check_panels("q8_0", arena[matrix.offset : matrix.offset + matrix.num_bytes], found, x)
