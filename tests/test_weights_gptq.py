"""Matrices that GPTQModel and AutoAWQ packed (recorded: tests/oracles_gptq/record_matrices.py), each way of packing.

kvist reads the numbers that these libraries' own dequantisers read, and multiplies with them as they are, or rounded to
8 bits where docs/weights.md says so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny.quantised_directory import check_products, info_of, read, write
from tiny.recorded import DATA
from tiny.stream import Stream

from kvist.checkpoint.safetensors import HuggingFaceDirectory

FILE = DATA / "gptq_matrices.npz"
Array = np.ndarray[Any, Any]
with np.load(FILE, allow_pickle=False) as recorded:
    CASES = sorted({name.rpartition("/")[0] for name in recorded})


def recorded_matrix(case: str, path: Path) -> tuple[HuggingFaceDirectory, Array]:
    """As a directory, and the products of the library's numbers with a vector."""
    with np.load(FILE, allow_pickle=False) as recorded:
        parts = {name.removeprefix(f"{case}/"): recorded[name] for name in recorded if name.startswith(f"{case}/")}
    settings, products = json.loads(str(parts.pop("settings"))), parts.pop("products")
    return write(path, parts, settings), products


@pytest.mark.parametrize("case", CASES)
def test_numbers_and_products(tmp_path: Path, case: str) -> None:
    checkpoint, products = recorded_matrix(case, tmp_path)
    numbers = read(checkpoint)
    x = Stream(1, case).normal((numbers.shape[1],)).astype(np.float64)
    size = np.abs(numbers.astype(np.float64)) @ np.abs(x)
    assert (np.abs(numbers.astype(np.float64) @ x - products) <= 2.0**-45 * size).all()  # whatever the sum's order
    check_products(checkpoint, numbers, Stream(2, case).normal((3, numbers.shape[1])))


def test_every_type_of_these_is_recorded(tmp_path_factory) -> None:
    found = [recorded_matrix(case, tmp_path_factory.mktemp("case"))[0] for case in CASES]
    assert {info_of(checkpoint).type for checkpoint in found} == {"int4", "int4_zero", "int8_zero", "int_reordered"}


def test_recordings_stay_small() -> None:
    assert FILE.stat().st_size < 150_000
