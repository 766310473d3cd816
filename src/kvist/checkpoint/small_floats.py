"""Matrices of 8-bit floats or integers with scales beside them, and MXFP4 in blocks and scales.

fp8 is e4m3 without infinities, as https://arxiv.org/abs/2209.05433 has it, times a scale for the whole tensor, for a
row, or for a block of rows and inputs (``weight_scale_inv``, which despite its name is multiplied with: DeepSeek-V3,
https://github.com/deepseek-ai/DeepSeek-V3, inference/kernel.py). MXFP4 (gpt-oss) keeps 32 e2m1 numbers in 16 bytes,
neighbours in one byte with the first in its low bits, and an exponent's byte e that means 2^(e - 127).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvist.checkpoint.codes import GROUP, Codes, Floats, Rows
from kvist.checkpoint.files import Composed, quote
from kvist.checkpoint.parts import FLOATS, Parts, of_codes
from kvist.errors import CheckpointError, UnsupportedError

FP8 = ("f8_e4m3", "f8_e5m2")
E2M1_TWICE = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""What the 16 codes of MXFP4 stand for, times 2."""


def e4m3(codes: npt.NDArray[np.uint8]) -> Floats:
    """The 256 codes, or any of them, as f32; 0x7F and 0xFF are NaN."""
    exponent, mantissa = (codes >> 3 & 15).astype(np.int32), (codes & 7).astype(np.float32)
    is_small = exponent == 0
    size = np.ldexp(np.where(is_small, mantissa, mantissa + 8), np.where(is_small, -9, exponent - 10)).astype(
        np.float32
    )
    size = np.where(codes & 0x7F == 0x7F, np.float32(np.nan), size)
    return np.where(codes & 0x80, -size, size).astype(np.float32)


_E4M3 = e4m3(np.arange(256, dtype=np.uint8))
_E5M2 = (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float32)


def scaled(parts: Parts, stem: str) -> Composed:
    """The matrix ``stem``.weight, int8 or fp8, and its scales."""
    name = f"{stem}.weight"
    info = parts.info(name)
    if info.type not in ("i8", *FP8) or len(info.shape) != 2 or 0 in info.shape:
        raise UnsupportedError(
            f"tensor {quote(name)} has scales, type {info.type} and shape {info.shape}; supported: matrices of i8 or "
            f"{' or '.join(FP8)}"
        )
    scale_name = parts.present(f"{stem}.weight_scale", f"{stem}.weight_scale_inv")[0]
    scales = parts.info(scale_name)
    parts.check(scale_name, FLOATS, scales.shape)
    block_rows, block_inputs = _block(parts, scale_name, info.shape)
    zero_name = f"{stem}.weight_zero_point"
    part_names = (name, scale_name, *parts.present(zero_name))
    if parts.has(zero_name):
        parts.check(zero_name, ("i8",), scales.shape)
    outputs, inputs = info.shape
    blocks = np.arange(inputs) // block_inputs  # of each input

    def numbers(array: npt.NDArray[np.generic], rows: Rows) -> npt.NDArray[np.generic]:
        """A number for each block of inputs of the rows, of the scales or zero points."""
        grid = array.reshape(-(-outputs // block_rows), -(-inputs // block_inputs))
        return grid[rows // block_rows]

    def codes(rows: Rows) -> Codes:
        first = blocks[::GROUP]
        found = numbers(parts.floats(scale_name), rows)[:, first]
        zeros = np.zeros(found.shape, np.int16)
        if parts.has(zero_name):
            zeros = numbers(parts.array(zero_name), rows)[:, first].astype(np.int16)
        return Codes(parts.array(name)[rows].astype(np.int16), zeros, found.astype(np.float32))

    def floats(rows: Rows) -> Floats:
        stored = parts.bytes(name)[rows]
        values = (_E4M3 if info.type == "f8_e4m3" else _E5M2)[stored]
        scale = numbers(parts.floats(scale_name), rows).astype(np.float32)
        found: Floats = values * (scale if scale.shape[1] == 1 else scale[:, blocks])
        return found

    if info.type != "i8":
        return Composed(parts.matrix(name, "fp8", info.shape, part_names), part_names, floats)
    if inputs % GROUP or (block_inputs % GROUP and block_inputs != inputs):
        raise UnsupportedError(
            f"tensor {quote(name)} of {info.shape} has a scale for {block_inputs} inputs; supported: multiples of 32"
        )
    kind = "int8_zero" if parts.has(zero_name) else "int8"
    return of_codes(parts.matrix(name, kind, info.shape, part_names), part_names, codes)


def _block(parts: Parts, scale_name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and inputs that share a scale."""
    outputs, inputs = shape
    scales = parts.info(scale_name).shape
    if scales in ((), (1,), (1, 1)):
        return outputs, inputs
    if scales in ((outputs,), (outputs, 1)):
        return 1, inputs
    size = _block_size(parts)
    if scales == (-(-outputs // size[0]), -(-inputs // size[1])):
        return size
    if len(scales) == 2 and scales[0] == outputs and scales[1] and inputs % scales[1] == 0:
        return 1, inputs // scales[1]
    raise CheckpointError(
        f"tensor {quote(scale_name)} has shape {scales}, which fits no division of {shape}; its config says "
        f"weight_block_size {size}"
    )


def _block_size(parts: Parts) -> tuple[int, int]:
    size = parts.settings.get("weight_block_size")
    if isinstance(size, list | tuple) and len(size) == 2 and all(type(n) is int and n > 0 for n in size):
        return size[0], size[1]
    return 128, 128


def mxfp4(parts: Parts, stem: str) -> Composed:
    """The matrices ``stem``_blocks and ``stem``_scales of all experts, [experts, outputs, inputs] together."""
    names = (f"{stem}_blocks", f"{stem}_scales")
    blocks = parts.info(names[0])
    if len(blocks.shape) < 3 or 0 in blocks.shape:
        raise CheckpointError(
            f"tensor {quote(names[0])} has shape {blocks.shape}; (..., outputs, groups, 16) is needed"
        )
    parts.check(names[0], ("u8",), (*blocks.shape[:-1], GROUP // 2))
    parts.check(names[1], ("u8",), blocks.shape[:-1])
    num_groups = blocks.shape[-2]
    values = np.array(E2M1_TWICE, np.int16)

    def codes(rows: Rows) -> Codes:
        pairs = parts.bytes(names[0]).reshape(-1, num_groups * GROUP // 2)[rows]
        exponents = parts.bytes(names[1]).reshape(-1, num_groups)[rows].astype(np.int32)
        numbers = np.stack([values[pairs & 15], values[pairs >> 4]], axis=-1).reshape(len(rows), -1)
        return Codes(numbers, np.zeros(exponents.shape, np.int16), np.ldexp(np.float32(1), exponents - 128))

    shape = (*blocks.shape[:-2], num_groups * GROUP)
    return of_codes(parts.matrix(stem, "mxfp4_pairs", shape, names), names, codes)
