"""Rows of a tensor as another weight type: ``--weights f32|bf16|q8|q4``, and float rows that are stored transposed.

Dequantising and quantising are the ``gguf`` package's; a matrix is converted some thousand rows at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvist.errors import SpecError
from kvist.kernels.layout import GROUP, padded
from kvist.kernels.packing import SOURCE_BYTES

WEIGHTS = {"f32": "f32", "bf16": "bf16", "q8": "q8_0", "q4": "q4_1"}
"""What ``--weights`` takes, and the type it means."""

ELEMENT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
"""The float types, and the bytes of a number."""


def check_weights(name: str | None) -> None:
    """Raise SpecError unless ``name`` is a choice of ``--weights``."""
    if name is not None and name not in WEIGHTS:
        raise SpecError(f'unknown weights "{name}"; known: {", ".join(WEIGHTS)}')


def row_bytes(form: str, width: int) -> int:
    """Bytes of a row of ``width`` inputs in a checkpoint."""
    return width * ELEMENT_BYTES[form] if form in ELEMENT_BYTES else width // GROUP * SOURCE_BYTES[form]


def to_f32(raw: npt.NDArray[np.uint8], form: str) -> npt.NDArray[np.float32]:
    """Rows of bytes ``[rows, row_bytes]`` as f32 ``[rows, inputs]``."""
    if form == "f32":
        return raw.view(np.float32)
    if form == "f16":
        return raw.view(np.float16).astype(np.float32)
    if form == "bf16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    import gguf

    dequantised: npt.NDArray[np.float32] = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[form.upper()])
    return dequantised


def from_f32(rows: npt.NDArray[np.float32], form: str) -> npt.NDArray[np.uint8]:
    """f32 ``[rows, width]`` as bytes of another type; quantised widths are padded with zeros to a multiple of 32."""
    if form == "f32":
        return np.ascontiguousarray(rows).view(np.uint8)
    if form == "bf16":
        bits = np.ascontiguousarray(rows).view(np.uint32).astype(np.uint64)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return rounded.astype(np.uint16).view(np.uint8)
    if form == "f16":
        return rows.astype(np.float16).view(np.uint8)
    import gguf

    wide: Any = np.zeros((rows.shape[0], padded(rows.shape[1])), np.float32)
    wide[:, : rows.shape[1]] = rows
    quantised: npt.NDArray[np.uint8] = gguf.quants.quantize(wide, gguf.GGMLQuantizationType[form.upper()])
    return quantised
