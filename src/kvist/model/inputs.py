"""Rows that a matrix multiplies, and whether they have to be int8."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvist.kernels import matmul
from kvist.model.weights import Matrix, Placed


@dataclass(frozen=True)
class Input:
    """Rows that a matmul reads: as f32 or quantised."""

    at: int
    stride: int
    is_quantised: bool


def is_quantised_input(placed: Placed) -> bool:
    """Whether the matrices of a role multiply int8 rows; they all do, or none."""
    return are_quantised(matrix for matrix, _ in placed)


def are_quantised(matrices: Iterable[Matrix]) -> bool:
    """Whether matrices that read the same rows multiply int8; they all do, or none."""
    found = {matrix.form in matmul.QUANTISED for matrix in matrices}
    assert len(found) == 1, found
    return found.pop()
