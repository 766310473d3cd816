"""Matrices packed by GPTQModel and AutoAWQ: their numbers are what those libraries' own dequantisers say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from oracles_gptq.matrices import Matrix, matrices
from oracles_gptq.record_matrices import FILE, recorded_arrays
from tiny.quantised_directory import check_products, read, write
from tiny.stream import Stream

MATRICES = matrices()


@pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)
def test_numbers_and_products(tmp_path: Path, matrix: Matrix) -> None:
    checkpoint = write(tmp_path, matrix.tensors, matrix.settings)
    assert np.array_equal(read(checkpoint), matrix.numbers)
    check_products(checkpoint, matrix.numbers, Stream(1, "x").normal((3, matrix.numbers.shape[1])))


def test_recorded_matrices() -> None:
    fresh = recorded_arrays(MATRICES)
    with np.load(FILE, allow_pickle=False) as recorded:
        assert set(recorded) == set(fresh)
        for name in fresh:
            if name.endswith("/products"):  # summed in the order of this machine's NumPy
                np.testing.assert_allclose(fresh[name], recorded[name], rtol=0, atol=1e-12)
            else:
                assert np.array_equal(fresh[name], recorded[name]), name
