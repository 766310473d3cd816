"""Matrices that a directory keeps in several tensors: small numbers, their scales, perhaps zero points.

Each looks from outside like one tensor of the usual name (``q_proj.weight``), whose rows are decoded when they are
asked for. Which there are is read off names and shapes, not off the config, which may except any layer.

    X.qweight X.qzeros X.scales [X.g_idx]                  GPTQ, AWQ             ``packed_words``
    X.weight_packed X.weight_shape X.weight_scale [...]    compressed-tensors    ``packed_words``
    X.weight X.weight_scale [X.weight_zero_point]          compressed-tensors, int8 or fp8
    X.weight X.weight_scale_inv                            fp8 in blocks
    X_blocks X_scales                                      MXFP4 of experts      ``small_floats``
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvist.checkpoint import packed_words, small_floats
from kvist.checkpoint.files import Composed, TensorInfo
from kvist.checkpoint.parts import Parts

Find = Callable[[Parts, str], Composed]

FINDERS: Mapping[str, Find] = {
    ".qweight": packed_words.gptq_or_awq,
    ".weight_packed": packed_words.compressed,
    ".weight_scale": small_floats.scaled,
    ".weight_scale_inv": small_floats.scaled,
    "_blocks": small_floats.mxfp4,
}
"""By how a tensor's name ends: what reads the matrix that it is a part of, given what comes before."""

_NEEDED = {"_blocks": "_scales", ".weight_scale": ".weight", ".weight_scale_inv": ".weight"}
"""A part without which the name means something else."""


@dataclass(frozen=True)
class Found:
    """``tensors`` as a reader of weights sees them, and those of them that are ``composed``."""

    tensors: Mapping[str, TensorInfo]
    composed: Mapping[str, Composed]


def compose(
    tensors: Mapping[str, TensorInfo], view: Callable[[str], npt.NDArray[np.uint8]], config: Mapping[str, object]
) -> Found:
    """Put one tensor in the place of each matrix's parts.

    Raises CheckpointError where parts are missing or contradict each other, UnsupportedError where they are packed in
    a way that isn't read.
    """
    parts = Parts(tensors, view, config)
    composed = {matrix.info.name: matrix for matrix in _matrices(parts)}
    if not composed:
        return Found(tensors, {})
    used = {name for matrix in composed.values() for name in matrix.part_names}
    kept = {name: info for name, info in tensors.items() if name not in used}
    return Found(kept | {name: matrix.info for name, matrix in composed.items()}, composed)


def _matrices(parts: Parts) -> Iterator[Composed]:
    for name in parts.tensors:
        for ending, find in FINDERS.items():
            stem = name.removesuffix(ending)
            if name.endswith(ending) and (ending not in _NEEDED or stem + _NEEDED[ending] in parts.tensors):
                if ending == ".weight_scale" and stem + ".weight_packed" in parts.tensors:
                    continue
                yield find(parts, stem)
