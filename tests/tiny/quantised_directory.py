"""A directory of one quantised matrix, and what it becomes in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from kvist.checkpoint.files import TensorInfo, check_supported
from kvist.checkpoint.safetensors import HuggingFaceDirectory
from kvist.model import kept
from kvist.model.weights import Packer
from tiny.held import numbers, rounding
from tiny.products import check_panels

Array = np.ndarray[Any, Any]
NAME = "model.layers.0.mlp.up_proj"


def write(path: Path, tensors: Mapping[str, Array], settings: Mapping[str, Any]) -> HuggingFaceDirectory:
    config = {"model_type": "llama", "quantization_config": settings}
    (path / "config.json").write_text(json.dumps(config))
    save_file({f"{NAME}.{part}": np.ascontiguousarray(tensor) for part, tensor in tensors.items()},
              path / "model.safetensors")  # fmt: skip
    checkpoint = HuggingFaceDirectory(path)
    check_supported(checkpoint)
    return checkpoint


def info_of(checkpoint: HuggingFaceDirectory) -> TensorInfo:
    [info] = checkpoint.tensors.values()
    return info


def read(checkpoint: HuggingFaceDirectory) -> Array:
    """The matrix's numbers, f32 [outputs, inputs]."""
    info = info_of(checkpoint)
    return checkpoint.composed[info.name].floats(np.arange(info.shape[0]))


def check_products(checkpoint: HuggingFaceDirectory, values: Array, x: Array) -> None:
    """Packed, the matrix multiplies as ``values`` [outputs, inputs] do, or as those that 8 bits make of them.

    A 4-bit form, and 8 bits without zero points, hold the values themselves, unless 16 bits are too few for a scale.
    """
    info = info_of(checkpoint)
    packer = Packer(checkpoint, None, "")
    [(matrix, _)] = packer.matrices([packer.part(info.name, *info.shape)], info.shape[1], [None])
    panels = packer.fill(2)
    if info.type not in kept.INTEGERS:
        held = numbers(matrix, panels)
        assert (np.abs(held - values) <= rounding(values)).all(), info.type
        values = held
    check_panels(matrix.form, panels[matrix.offset :][: matrix.num_bytes], values, x)
