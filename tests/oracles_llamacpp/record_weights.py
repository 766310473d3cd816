"""Record blocks of every type that llama.cpp's quantiser makes, and its own products: tests/data/llamacpp_blocks.npz.

    PYTHONPATH=tests .venv-llamacpp/bin/python -m oracles_llamacpp.record_weights

`test_weights.py` beside this file records afresh and compares; tests/test_weights_llamacpp.py reads what is recorded.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from oracles_llamacpp.wide_llama import FTYPES, write_as
from tiny.recorded import DATA
from tiny.stream import Stream

from kvist.checkpoint.gguf import GgufFile

Array = np.ndarray[Any, Any]

BLOCKS_FILE = DATA / "llamacpp_blocks.npz"
NUM_ROWS = 4


def block_types(file: GgufFile) -> dict[str, str]:
    """By weight type the first matrix that is of it."""
    found: dict[str, str] = {}
    for name, info in file.tensors.items():
        if len(info.shape) > 1 and info.type != "f32":  # routers of experts stay as they are
            found.setdefault(info.type, name)
    return found


def numbers_of(wide: GgufFile, name: str) -> Array:
    """A matrix of a file in f32; experts' one below the other."""
    return wide.raw(name).view(np.float32).reshape(-1, wide.tensors[name].shape[-1])


def recorded_arrays() -> dict[str, Array]:
    """Of each type some rows' bytes, and the products of llama.cpp's numbers with a vector, summed in float64."""
    found: dict[str, Array] = {}
    for ftype in FTYPES:
        with tempfile.TemporaryDirectory() as directory:
            path, wide_path = write_as(ftype, Path(directory))
            file, wide = GgufFile(path), GgufFile(wide_path)
            for weight_type, name in block_types(file).items():
                if f"{weight_type}/raw" in found:
                    continue
                numbers = numbers_of(wide, name)
                row_bytes = file.raw(name).size // len(numbers)
                x = Stream(1, weight_type).normal((numbers.shape[1],)).astype(np.float64)
                found[f"{weight_type}/raw"] = file.raw(name)[: NUM_ROWS * row_bytes].copy()
                found[f"{weight_type}/products"] = numbers[:NUM_ROWS].astype(np.float64) @ x
    return found


def main() -> None:
    np.savez_compressed(BLOCKS_FILE, **recorded_arrays())


if __name__ == "__main__":
    main()
