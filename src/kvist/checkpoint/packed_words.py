"""Integers of 2, 4 or 8 bits packed in 32-bit words: GPTQ, AWQ, and compressed-tensors' ``pack-quantized``.

GPTQ    qweight [in / n, out]: a word holds n neighbouring inputs, the first in its lowest bits; qzeros
        [groups, out / n] holds each zero point minus one, where one is taken from all of a word in one subtraction
        that borrows after a zero point of 0 (``checkpoint_format`` gptq_v2: as it is); scales [groups, out]; g_idx
        [in] is the group of each input. https://github.com/ModelCloud/GPTQModel (nn_modules/qlinear, utils/model.py)
AWQ     qweight [in, out / 8]: a word holds 8 neighbouring outputs in the order 0 2 4 6 1 3 5 7; qzeros
        [groups, out / 8] likewise; scales [groups, out]. https://github.com/casper-hansen/AutoAWQ
        (utils/packing_utils.py)
compressed-tensors  weight_packed [out, in / n], lowest bits first, of q + 2^(bits - 1); weight_scale [out, groups];
        weight_zero_point [out / n, groups] likewise, packed along the outputs; weight_g_idx [in].
        https://github.com/neuralmagic/compressed-tensors (compressors/pack_quantized)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from kvist.checkpoint.codes import GROUP, Codes, Rows
from kvist.checkpoint.files import Composed, quote
from kvist.checkpoint.parts import FLOATS, Parts, of_codes
from kvist.errors import CheckpointError, UnsupportedError

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of 8 neighbouring outputs stands in each four bits of a word, from the lowest on."""

Words = npt.NDArray[np.uint32]
Ints = npt.NDArray[np.int16]
Unpack = Callable[[Rows], Ints]


def unpacked(words: npt.NDArray[np.generic], bits: int, order: tuple[int, ...] | None = None) -> Ints:
    """Unsigned numbers of words along the last axis: [..., words] to [..., words x (32 / bits)]."""
    count = 32 // bits
    shifts = np.arange(count, dtype=np.uint32) * np.uint32(bits)
    if order is not None:
        shifts = shifts[np.argsort(order)]
    numbers = (words.view(np.uint32)[..., None] >> shifts & np.uint32((1 << bits) - 1)).astype(np.int16)
    return numbers.reshape(*words.shape[:-1], -1)


def gptq_or_awq(parts: Parts, stem: str) -> Composed:
    """The matrix whose tensors are ``stem``.qweight and so on; which of the two it is shows in their shapes."""
    names = [f"{stem}.{part}" for part in ("qweight", "qzeros", "scales")]
    scales = parts.info(names[2])
    words = parts.info(names[0])
    if len(scales.shape) != 2 or len(words.shape) != 2 or 0 in scales.shape or 0 in words.shape:
        raise CheckpointError(
            f"tensors {quote(names[0])} and {quote(names[2])} must be matrices; fetch the model again"
        )
    bits = _bits(parts, stem)
    (num_groups, outputs), count = scales.shape, 32 // bits
    is_awq = words.shape[1] != outputs
    inputs = words.shape[0] if is_awq else words.shape[0] * count
    parts.check(names[0], ("i32",), (inputs, outputs // count) if is_awq else (inputs // count, outputs))
    parts.check(names[1], ("i32",), (num_groups, -(-outputs // count)))
    parts.check(names[2], FLOATS, (num_groups, outputs))
    if is_awq and bits != 4:
        raise UnsupportedError(f"{quote(stem)} is packed by AWQ in {bits} bits; supported: 4")
    group = _group_size(stem, inputs, num_groups)
    groups = _group_of_inputs(parts, f"{stem}.g_idx", inputs, num_groups, group)
    part_names = (*names, *parts.present(f"{stem}.g_idx"))
    order = AWQ_ORDER if is_awq else None
    is_less_one = not is_awq and parts.settings.get("checkpoint_format") != "gptq_v2"
    ones = np.uint32(sum(1 << bits * n for n in range(count))) if is_less_one else np.uint32(0)
    is_symmetric = parts.settings.get("sym", not is_awq) is True and not is_awq and bits == 4

    def numbers(rows: Rows) -> Ints:
        stored = parts.array(names[0])
        if is_awq:
            words_of = np.unique(rows // count)
            found = unpacked(np.ascontiguousarray(stored[:, words_of]), bits, order)
            return found[:, np.searchsorted(words_of, rows // count) * count + rows % count].T
        columns = np.ascontiguousarray(stored[:, rows].T)  # [rows, words]
        return unpacked(columns, bits)

    def zeros(rows: Rows) -> Ints:
        found = unpacked(parts.array(names[1]).view(np.uint32) + ones, bits, order)[:, rows].T
        if is_symmetric and (found != 8).any():
            raise CheckpointError(f'{quote(names[1])} has zero points other than 8, but its config says "sym": true')
        return found

    def scale(rows: Rows) -> npt.NDArray[np.float32]:
        return parts.floats(names[2])[:, rows].T

    kind = "int4" if is_symmetric else "int4_zero" if bits <= 4 else "int8_zero"
    return _matrix(parts, f"{stem}.weight", kind, (outputs, inputs), part_names, numbers, zeros, scale, group, groups)


def compressed(parts: Parts, stem: str) -> Composed:
    """The matrix whose tensors are ``stem``.weight_packed and so on."""
    packed, scale_name, shape_name = (f"{stem}.weight_{part}" for part in ("packed", "scale", "shape"))
    zero_name, index_name = f"{stem}.weight_zero_point", f"{stem}.weight_g_idx"
    parts.check(shape_name, ("i64", "i32"), (2,))
    outputs, inputs = (int(size) for size in parts.array(shape_name))
    words = parts.info(packed)
    bits = next((n for n in (4, 8) if words.shape == (outputs, -(-inputs // (32 // n)))), 0)
    if outputs < 1 or inputs < 1 or not bits:
        raise UnsupportedError(
            f"tensor {quote(packed)} of shape {words.shape} holds [{outputs}, {inputs}]; supported: 4 or 8 bits"
        )
    parts.check(packed, ("i32",), words.shape)
    scales = parts.info(scale_name)
    num_groups = scales.shape[-1] if scales.shape else 1
    parts.check(scale_name, FLOATS, (outputs, max(1, num_groups)))
    group = _group_size(stem, inputs, num_groups)
    groups = _group_of_inputs(parts, index_name, inputs, num_groups, group)
    count, middle = 32 // bits, np.int16(1 << (bits - 1))
    has_zeros = parts.has(zero_name)
    if has_zeros:
        parts.check(zero_name, ("i32",), (-(-outputs // count), num_groups))

    def numbers(rows: Rows) -> Ints:
        return unpacked(np.ascontiguousarray(parts.array(packed)[rows]), bits)[:, :inputs]

    def zeros(rows: Rows) -> Ints:
        if not has_zeros:
            return np.full((rows.size, num_groups), middle, np.int16)
        along = np.ascontiguousarray(parts.array(zero_name).T)  # [groups, out / n]
        return unpacked(along, bits)[:, rows].T

    def scale(rows: Rows) -> npt.NDArray[np.float32]:
        return parts.floats(scale_name)[rows]

    part_names = (packed, scale_name, shape_name, *parts.present(zero_name, index_name))
    kind = f"int{bits}_zero" if has_zeros else f"int{bits}"
    return _matrix(parts, f"{stem}.weight", kind, (outputs, inputs), part_names, numbers, zeros, scale, group, groups)


def _matrix(
    parts: Parts,
    name: str,
    kind: str,
    shape: tuple[int, int],
    part_names: tuple[str, ...],
    numbers: Unpack,
    zeros: Unpack,
    scale: Callable[[Rows], npt.NDArray[np.float32]],
    group: int,
    groups: npt.NDArray[np.int64] | None,
) -> Composed:
    """Put together what unpacks numbers [rows, in], zero points and scales [rows, groups].

    Where neighbouring inputs are of different groups (``groups``), no 32 of them share a scale: only floats are right.
    """
    width = shape[1]

    def codes(rows: Rows) -> Codes:
        repeats = -(-group // GROUP)
        wide = (width + GROUP - 1) // GROUP
        return Codes(
            numbers(rows),
            np.repeat(zeros(rows), repeats, axis=1)[:, :wide],
            np.repeat(scale(rows), repeats, axis=1)[:, :wide],
        )

    def floats(rows: Rows) -> npt.NDArray[np.float32]:
        assert groups is not None
        found = (numbers(rows) - zeros(rows)[:, groups]).astype(np.float32) * scale(rows)[:, groups]
        return found.astype(np.float32)

    if groups is None and width % GROUP == 0:
        return of_codes(parts.matrix(name, kind, shape, part_names), part_names, codes)
    groups = np.arange(width) // group if groups is None else groups
    return Composed(parts.matrix(name, "int_reordered", shape, part_names), part_names, floats)


def _bits(parts: Parts, stem: str) -> int:
    bits = parts.settings.get("bits", parts.settings.get("w_bit", 4))
    if bits not in (2, 4, 8):
        raise UnsupportedError(f"{quote(stem)} is packed in {quote(bits)} bits; supported: 2, 4, 8")
    assert isinstance(bits, int)
    return bits


def _group_size(stem: str, inputs: int, num_groups: int) -> int:
    """Inputs that share a scale; a single group may be of any size, others are whole kvist groups."""
    group = -(-inputs // max(1, num_groups))
    if num_groups < 1 or (num_groups > 1 and (inputs % num_groups or group % GROUP)):
        raise UnsupportedError(
            f"{quote(stem)} has {num_groups} scales for {inputs} inputs; supported: groups of a multiple of {GROUP}"
        )
    return group


def _group_of_inputs(parts: Parts, name: str, inputs: int, num_groups: int, group: int) -> npt.NDArray[np.int64] | None:
    """The group of each input where these aren't in order; None where they are."""
    if not parts.has(name):
        return None
    parts.check(name, ("i32", "i64"), (inputs,))
    groups = parts.array(name).astype(np.int64)
    if np.array_equal(groups, np.arange(inputs) // group) or (groups == -1).all():
        return None
    if groups.min() < 0 or groups.max() >= num_groups:
        raise CheckpointError(
            f"tensor {quote(name)} names groups {groups.min()} to {groups.max()}; there are {num_groups}"
        )
    return groups
