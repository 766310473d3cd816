"""Rows of a tensor in another weight type: where no form of the kernels is the file's own, for ``--weights``, and for
float rows that are stored transposed.

Decoding is the ``gguf`` package's. A matrix is converted some thousand rows at a time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvist.checkpoint.codes import Codes
from kvist.checkpoint.ggml_types import BY_NAME, GgmlType
from kvist.errors import SpecError
from kvist.kernels.layout import GROUP, SOURCE_Q4_Z, padded

WEIGHTS = {"f32": "f32", "bf16": "bf16", "q8": "q8_0", "q4": "q4_1"}
"""What ``--weights`` takes, and the type it means."""

ELEMENT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
"""The float types, and the bytes of a number."""

DECODED_AT_ONCE = 1 << 18
"""Numbers that the ``gguf`` package decodes in one go: enough to outweigh a call's cost, few enough for the cache."""
_ROWS_OF_GGUF = 16
"""Rows that it takes together, however long they are."""

_Q4_Z = GgmlType("q4_z", GROUP, SOURCE_Q4_Z)
"""A form that no file has: what ``as_blocks`` makes of 4-bit codes with zero points."""
_HALF_ONE = np.frombuffer(np.float16(1).tobytes(), np.uint8)
_SCALE_AT = {"q5_0": 0, "iq4_nl": 0, "tq1_0": 52, "tq2_0": 64}
"""Where a block's f16 scale stands in the types of ``kept.EXACT_AS_Q8``."""


def check_weights(name: object) -> None:
    """Raise SpecError unless ``name`` is a choice of ``--weights``."""
    if name is not None and not (isinstance(name, str) and name in WEIGHTS):
        raise SpecError(f'unknown weights "{name}"; known: {", ".join(WEIGHTS)}')


def row_bytes(form: str, width: int) -> int:
    """Bytes of a row of ``width`` inputs in a checkpoint, or as ``pack`` takes a form that no file has."""
    return (_Q4_Z if form == _Q4_Z.name else BY_NAME[form]).num_bytes(width)


def to_f32(raw: npt.NDArray[np.uint8], form: str) -> npt.NDArray[np.float32]:
    """Rows of bytes ``[rows, row_bytes]`` as f32 ``[rows, inputs]``."""
    if form == "f32":
        return raw.view(np.float32)
    if form == "f16":
        return raw.view(np.float16).astype(np.float32)
    if form == "bf16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    import gguf

    kind = BY_NAME[form]
    blocks = np.ascontiguousarray(raw).reshape(-1, kind.block_bytes)
    whole = len(blocks) * kind.block_elements // DECODED_AT_ONCE * (DECODED_AT_ONCE // kind.block_elements)
    ggml_type = gguf.GGMLQuantizationType[form.upper()]
    many = blocks[:whole].reshape(-1, DECODED_AT_ONCE // _ROWS_OF_GGUF // kind.block_elements * kind.block_bytes)
    with np.errstate(all="ignore"):  # infinity and NaN are found when the model runs
        decoded = [gguf.quants.dequantize(some, ggml_type).reshape(-1) for some in (many, blocks[whole:]) if some.size]
    numbers = decoded[0] if len(decoded) == 1 else np.concatenate(decoded)
    rows: npt.NDArray[np.float32] = numbers.reshape(len(raw), -1)
    return rows


def from_f32(rows: npt.NDArray[np.float32], form: str) -> npt.NDArray[np.uint8]:
    """f32 ``[rows, width]`` as bytes of another type; quantised widths are padded with zeros to a multiple of 32."""
    if form == "f32":
        return np.ascontiguousarray(rows).view(np.uint8)
    if form == "bf16":
        bits = np.ascontiguousarray(rows).view(np.uint32).astype(np.uint64)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return rounded.astype(np.uint16).view(np.uint8)
    with np.errstate(all="ignore"):  # infinity and NaN are found when the model runs
        if form == "f16":
            return rows.astype(np.float16).view(np.uint8)
        import gguf

        quantised: npt.NDArray[np.uint8] = gguf.quants.quantize(widened(rows), gguf.GGMLQuantizationType[form.upper()])
        return quantised


def widened(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """A copy padded with zeros to whole groups of 32."""
    wide = np.zeros((rows.shape[0], padded(rows.shape[1])), np.float32)
    wide[:, : rows.shape[1]] = rows
    return wide


def to_q8(raw: npt.NDArray[np.uint8], form: str) -> npt.NDArray[np.uint8]:
    """Rows of a type of ``kept.EXACT_AS_Q8`` as rows of q8_0, number for number.

    With scales of 1 a block decodes to its codes.
    """
    kind = BY_NAME[form]
    blocks = raw.reshape(-1, kind.block_bytes).copy()
    if form == "mxfp4":  # its byte e means 2^(e - 128)
        with np.errstate(over="ignore"):  # infinity is found when the model runs
            halves = np.ldexp(np.float32(1), blocks[:, 0].astype(np.int32) - 128).astype(np.float16)
        blocks[:, 0] = 128
    else:
        at = _SCALE_AT[form]
        halves = blocks[:, at : at + 2].copy().view(np.float16)[:, 0]
        blocks[:, at : at + 2] = _HALF_ONE
    codes = to_f32(blocks, form).astype(np.int8)
    return q8_blocks(codes.reshape(len(raw), -1), np.repeat(halves, kind.block_elements // GROUP).reshape(len(raw), -1))


def codes_to_q8(raw: npt.NDArray[np.uint8], form: str) -> npt.NDArray[np.uint8]:
    """Rows of a type of ``kept.CODES_AS_Q8`` as rows of q8_0: the same codes, their scales rounded to 16 bits.

    With a block's scale at 1 and the finer ones at their least it decodes to its codes, none of which is 0.
    """
    kind = BY_NAME[form]
    blocks = raw.reshape(-1, kind.block_bytes).copy()
    numbers = to_f32(blocks, form).reshape(-1, GROUP)
    if form == "iq3_s":  # scale d x (1 + 2 x finer)
        blocks[:, :2], blocks[:, 106:] = _HALF_ONE, 0
    else:  # iq3_xxs: d x (1/2 + finer) / 2; the finer one is in the top bits of a 32-bit word of signs
        blocks[:, :2] = np.frombuffer(np.float16(4).tobytes(), np.uint8)
        blocks[:, 69::4] &= 0x0F
    codes = to_f32(blocks, form).reshape(-1, GROUP)
    with np.errstate(over="ignore", invalid="ignore"):  # infinity is found when the model runs
        scales = (numbers[:, 0] / codes[:, 0]).astype(np.float16)
    return q8_blocks(codes.astype(np.int8).reshape(len(raw), -1), scales.reshape(len(raw), -1))


def as_blocks(codes: Codes, form: str) -> npt.NDArray[np.uint8]:
    """Whole numbers as rows of the form that holds them."""
    with np.errstate(over="ignore"):  # infinity is found when the model runs
        scales = codes.scales.astype(np.float16)
    if form == "q8_0":
        wide = codes.codes.reshape(*codes.zeros.shape, GROUP) - codes.zeros[..., None]
        return q8_blocks(wide.astype(np.int8).reshape(codes.codes.shape), scales)
    numbers = codes.codes.astype(np.uint8).reshape(-1, 2, GROUP // 2)
    parts = [scales.reshape(-1, 1).view(np.uint8), numbers[:, 0] | numbers[:, 1] << 4]
    if form == "q4_z":
        parts.insert(1, (-codes.zeros).astype(np.int8).reshape(-1, 1).view(np.uint8))
    return np.concatenate(parts, axis=1).reshape(len(codes.codes), -1)


def q8_blocks(codes: npt.NDArray[np.int8], scales: npt.NDArray[np.float16]) -> npt.NDArray[np.uint8]:
    """Rows of q8_0 from codes ``[rows, width]`` and a scale for each 32 of them."""
    blocks = np.empty((scales.size, 2 + GROUP), np.uint8)
    blocks[:, :2] = scales.reshape(-1, 1).view(np.uint8)
    blocks[:, 2:] = codes.reshape(-1, GROUP).view(np.uint8)
    rows: npt.NDArray[np.uint8] = blocks.reshape(len(codes), -1)
    return rows
