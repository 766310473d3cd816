"""What each weight type of a file becomes in memory: the table that loading, ``kvist info`` and estimates share.

A type stays in its own bits where a form of the kernels holds exactly its numbers. Others become 8 bits: a group of
32 shares a 16-bit scale, which moves a number by at most 1/254 of the group's largest (``kernels.packing``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from kvist.checkpoint.files import TensorInfo
from kvist.kernels.layout import GROUP, GROUP_BYTES, PANEL_ROWS, padded
from kvist.units import format_bytes

AS_IT_IS = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q4_k")
"""Types that are forms of the kernels."""

EXACT_AS_Q8 = ("q5_0", "iq4_nl", "tq1_0", "tq2_0", "mxfp4")
"""Whole numbers of at most 8 bits times a scale for 32 of them or more: the 8-bit form holds them exactly.

(The scale of an mxfp4 block is any power of two, of which 16 bits hold 2^-24 to 2^15.)
"""

CODES_AS_Q8 = ("iq3_xxs", "iq3_s")
"""Whole numbers times a scale for 32 of them that needs more than 16 bits: the numbers stay and the scale is rounded.

Their smallest numbers are so small beside the largest (1 and 15) that steps of the largest / 127 would shrink them by
a twentieth, all of them alike.
"""

ROUNDED_TO_Q8 = (
    "q5_1", "q2_k", "q3_k", "q5_k", "q6_k", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq4_xs", "nvfp4",
)  # fmt: skip

INTEGERS = {"int4": "q4_0", "int4_zero": "q4_z", "int8": "q8_0", "mxfp4_pairs": "q8_0"}
"""Composed types whose codes a form holds as they are; their scales become 16-bit, which those of 16 bits are."""

KEPT_AS: Mapping[str, str] = {
    **{name: name for name in AS_IT_IS},
    **dict.fromkeys((*EXACT_AS_Q8, *CODES_AS_Q8, *ROUNDED_TO_Q8), "q8_0"),
    **INTEGERS,
    **dict.fromkeys(("int8_zero", "int_reordered", "fp8"), "q8_0"),
}
"""The form that a type becomes."""


@dataclass(frozen=True)
class Kept:
    """All tensors of one type: their bytes in the files, what they become, and its bytes in memory."""

    type: str
    form: str
    file_bytes: int
    kept_bytes: int

    @property
    def is_changed(self) -> bool:
        return self.type != self.form


def form_of(tensor_type: str, shape: tuple[int, ...]) -> str:
    """The form of a tensor of a type that is read; a vector becomes f32."""
    return KEPT_AS[tensor_type] if len(shape) > 1 else "f32"


def kept_bytes(shape: tuple[int, ...], form: str) -> int:
    """Bytes in memory of a tensor in a form, its rows filled up to whole panels."""
    if len(shape) < 2:
        return 4 * padded(prod(shape))
    rows = padded(prod(shape[:-1]), PANEL_ROWS)
    return rows // PANEL_ROWS * (padded(shape[-1]) // GROUP) * GROUP_BYTES[form]


def kept(tensors: Iterable[TensorInfo], form: str | None = None) -> list[Kept]:
    """What each type among the tensors becomes, largest first; ``form``, where given, is that of all matrices.

    A type that isn't read is left out.
    """
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for tensor in tensors:
        if tensor.type in KEPT_AS:
            own = (form or KEPT_AS[tensor.type]) if len(tensor.shape) > 1 else "f32"
            in_file, in_memory = found.get((tensor.type, own), (0, 0))
            found[tensor.type, own] = (in_file + tensor.num_bytes, in_memory + kept_bytes(tensor.shape, own))
    listed = [Kept(*names, *sizes) for names, sizes in found.items()]
    return sorted(listed, key=lambda item: -item.kept_bytes)


def notice(tensors: Iterable[TensorInfo]) -> str | None:
    """One line that says which types become larger when they are loaded, and what they take; None for none."""
    changed = [item for item in kept(tensors) if item.kept_bytes > item.file_bytes and item.form == "q8_0"]
    changed = [item for item in changed if item.is_changed]
    if not changed:
        return None
    names = ", ".join(item.type for item in changed)
    before, after = sum(item.file_bytes for item in changed), sum(item.kept_bytes for item in changed)
    return f"weights of type {names} become 8 bits: {format_bytes(after)} in memory, {format_bytes(before)} in the file"
