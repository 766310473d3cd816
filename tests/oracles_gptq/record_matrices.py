"""Record matrices as GPTQModel and AutoAWQ pack them, and their products with a vector: tests/data/gptq_matrices.npz.

    PYTHONPATH=tests .venv-gptq/bin/python -m oracles_gptq.record_matrices

`test_matrices.py` beside this file packs afresh and compares; tests/test_weights_gptq.py reads what is recorded.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from oracles_gptq.matrices import Matrix, matrices
from tiny.recorded import DATA
from tiny.stream import Stream

Array = np.ndarray[Any, Any]

FILE = DATA / "gptq_matrices.npz"


def recorded_arrays(found: dict[str, Matrix]) -> dict[str, Array]:
    """Of each matrix what a file would hold, and the products of the library's numbers, summed in float64."""
    arrays: dict[str, Array] = {}
    for name, matrix in found.items():
        x = Stream(1, name).normal((matrix.numbers.shape[1],)).astype(np.float64)
        arrays |= {f"{name}/{part}": tensor for part, tensor in matrix.tensors.items()}
        arrays[f"{name}/settings"] = np.array(json.dumps(matrix.settings))
        arrays[f"{name}/products"] = matrix.numbers.astype(np.float64) @ x
    return arrays


def main() -> None:
    np.savez_compressed(FILE, **recorded_arrays(matrices()))


if __name__ == "__main__":
    main()
