"""Random packed weights as GGUF stores them, and the numbers that they stand for by the gguf package's dequantiser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize, quantize

from tiny.stream import Stream

WEIGHT_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1")
FOUR_BIT_TYPES = ("q4_z", "q4_k")
"""Forms of the kernels that the gguf package has no quantiser for; q4_z is in no file (``kernels.packing``)."""
CONVERTED_TYPES = (
    "q5_0", "q5_1", "q2_k", "q3_k", "q5_k", "q6_k", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs",
    "iq3_s", "iq4_nl", "iq4_xs", "tq1_0", "tq2_0", "mxfp4", "nvfp4",
)  # fmt: skip
"""Types that become another form at load."""
GROUP = 32
_SCALES = {
    "q8_0": 1,
    "q4_0": 1,
    "q4_1": 2,
    "q4_z": 1,
}  # 16-bit numbers before the codes of a group; q4_1: scale, minimum


@dataclass(frozen=True)
class Packed:
    """``raw`` are the file's bytes of a matrix [rows, columns], ``values`` its float32 numbers."""

    type: str
    raw: np.ndarray[Any, np.dtype[np.uint8]]
    values: np.ndarray[Any, np.dtype[np.float32]]


def packed(weight_type: str, rows: int, columns: int, seed: int) -> Packed:
    """Return normal weights of deviation 1 / sqrt(columns), packed by the gguf package's quantiser."""
    if weight_type in FOUR_BIT_TYPES:
        return random_blocks(weight_type, rows, columns, seed)
    normal = Stream(seed, "packed").normal((rows, columns)) * np.float32(1 / np.sqrt(columns))
    raw = quantize(normal, _gguf_type(weight_type))
    return unpacked(weight_type, np.ascontiguousarray(raw).view(np.uint8), rows, columns)


def quantised(array: np.ndarray[Any, Any], weight_type: str) -> np.ndarray[Any, Any]:
    """Numbers packed by the gguf package's quantiser; by a plain one in q4_k, for which it has none."""
    if weight_type != "q4_k":
        return np.ascontiguousarray(quantize(array, _gguf_type(weight_type)))
    groups = array.astype(np.float64).reshape(-1, 8, GROUP)
    least = np.minimum(groups.min(axis=-1), 0)
    sizes = np.stack([(groups.max(axis=-1) - least) / 15, -least], axis=1)  # [blocks, 2, 8]
    halves = (sizes.max(axis=-1) / 63).astype(np.float16)
    small = np.rint(sizes / np.maximum(halves[..., None].astype(np.float64), 1e-9)).clip(0, 63).astype(np.uint8)
    scale, minimum = (halves[:, :, None].astype(np.float64) * small).swapaxes(0, 1)
    codes = np.rint((groups + minimum[..., None]) / np.maximum(scale, 1e-9)[..., None]).clip(0, 15).astype(np.uint8)
    first, last = small[..., :4], small[..., 4:]
    scales = np.concatenate([first | last >> 4 << 6, (last[:, :1] & 15) | (last[:, 1:] & 15) << 4], axis=1)
    nibbles = (codes[:, ::2] | codes[:, 1::2] << 4).reshape(len(codes), -1)
    blocks = np.concatenate([halves.view(np.uint8), scales.reshape(-1, 12), nibbles], axis=1)
    return blocks.reshape(*array.shape[:-1], -1)


def wild(weight_type: str, rows: int, columns: int, seed: int) -> Packed:
    """Return blocks that no quantiser writes but a file may hold: every code (-128 too), scales of either sign, zero,
    subnormal, and as large as ``2 ** 6``."""
    if weight_type == "q4_k":
        return wild_q4_k(rows, columns, seed)
    count, stream = rows * columns // GROUP, Stream(seed, "wild")
    scales = wild_halves(stream, count * _SCALES[weight_type]).reshape(count, -1).view(np.uint8)
    if weight_type == "q4_z":
        zeros = stream.raw(count).astype(np.uint8)[:, None] % np.uint8(17)
        scales = np.concatenate([scales, -zeros], axis=1)
    num_codes = 32 if weight_type == "q8_0" else 16
    codes = stream.raw(count * num_codes).astype(np.uint8).reshape(count, num_codes)
    return unpacked(weight_type, np.concatenate([scales, codes], axis=1), rows, columns)


def wild_q4_k(rows: int, columns: int, seed: int) -> Packed:
    count, stream = rows * columns // 256, Stream(seed, "wild")
    scales = wild_halves(stream, count * 2).reshape(count, 2).view(np.uint8)
    rest = stream.raw(count * 140).astype(np.uint8).reshape(count, 140)
    return unpacked("q4_k", np.concatenate([scales, rest], axis=1), rows, columns)


def wild_halves(stream: Stream, count: int) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Return 16-bit floats below 128 in size: any sign, any bits, an eighth of them zero."""
    bits = stream.raw(count)
    halves = (bits % np.uint64(0x5800) | (bits >> np.uint64(32) & np.uint64(0x8000))).astype(np.uint16)
    return np.where(bits >> np.uint64(61) == 0, np.uint16(0), halves)


def random_blocks(weight_type: str, rows: int, columns: int, seed: int) -> Packed:
    """Return blocks of random bytes, valid in these types, with scales near 0.01 of either sign (mxfp4's and nvfp4's,
    which have none, above 0)."""
    if weight_type == "q4_z":
        return wild(weight_type, rows, columns, seed)
    elements, num_bytes = gguf.GGML_QUANT_SIZES[_gguf_type(weight_type)]
    count, stream = rows * columns // elements, Stream(seed, "blocks")
    blocks = stream.raw(count * num_bytes).astype(np.uint8).reshape(count, num_bytes)
    scales = stream.raw(count * 4).reshape(count, 4)
    halves = (0x2000 + scales % 0x0800 + (scales >> 40) % 2 * 0x8000).astype(np.uint16)  # 2^-7 to 2^-6, of any bits
    if weight_type == "mxfp4":
        blocks[:, 0] = 120 + scales[:, 0] % 8
    elif weight_type == "nvfp4":
        blocks[:, :4] = 0x20 + scales % 0x20
    elif weight_type == "iq1_m":  # its scale is the upper four bits of four numbers
        words = blocks[:, 48:].view(np.uint16)
        words[:] = words & 0x0FFF | ((halves[:, :1] >> np.array([0, 4, 8, 12], np.uint16)) & 15) << 12
    else:
        for number, at in enumerate(SCALES_AT[weight_type]):
            blocks[:, at : at + 2] = halves[:, number : number + 1].view(np.uint8)
    return unpacked(weight_type, blocks, rows, columns)


SCALES_AT = {
    "q5_0": (0,), "q5_1": (0, 2), "q2_k": (80, 82), "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,),
    "iq1_s": (0,), "iq2_xxs": (0,), "iq2_xs": (0,), "iq2_s": (0,), "iq3_xxs": (0,), "iq3_s": (0,), "iq4_nl": (0,),
    "iq4_xs": (0,), "tq1_0": (52,), "tq2_0": (64,),
}  # fmt: skip
"""Where the 16-bit scales of a block stand (and minima: q5_1's second, for one)."""


def unpacked(weight_type: str, raw: np.ndarray[Any, np.dtype[np.uint8]], rows: int, columns: int) -> Packed:
    if weight_type == "q4_z":
        return unpacked_q4_z(raw.reshape(-1, 19), rows)
    raw = raw.reshape(rows, -1)
    values = dequantize(
        raw.view({"f32": np.float32, "f16": np.float16}.get(weight_type, np.uint8)), _gguf_type(weight_type)
    )
    assert values.shape == (rows, columns) and np.isfinite(values).all(), values.shape
    return Packed(weight_type, raw.reshape(-1), values.astype(np.float32))


def unpacked_q4_z(groups: np.ndarray[Any, np.dtype[np.uint8]], rows: int) -> Packed:
    scales = groups[:, :2].copy().view(np.float16).astype(np.float32)
    codes = np.concatenate([groups[:, 3:] & 15, groups[:, 3:] >> 4], axis=1).astype(np.float32)
    values = (codes + groups[:, 2:3].view(np.int8).astype(np.float32)) * scales
    return Packed("q4_z", groups.reshape(-1), values.reshape(rows, -1))


def _gguf_type(weight_type: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[weight_type.upper()]
