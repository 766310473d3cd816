from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.lab.divergence import Distribution, _exp, ordered_sum

SEEDS = st.integers(0, 2**32 - 1)


def rows(seed: int, size: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    one = (spread * draw.standard_normal(size)).astype(np.float32)
    return one, one + (0.1 * spread * draw.standard_normal(size)).astype(np.float32)


def probabilities(row: np.ndarray) -> np.ndarray:
    weights = np.exp(row.astype(np.longdouble) - row.max())
    return weights / weights.sum()


@given(SEEDS, st.sampled_from([1, 2, 97, 20_000]), st.sampled_from([0.01, 1.0, 10.0]))
def test_it_is_what_the_formula_says(seed: int, size: int, spread: float) -> None:
    one, other = rows(seed, size, spread)
    p, q = probabilities(one), probabilities(other)
    found = Distribution(one).compare(other, size - 1)
    assert found.kl == pytest.approx(float((p * np.log(p / q)).sum()), rel=1e-9, abs=1e-14)
    assert found.nll == pytest.approx(float(-np.log(q[-1])), rel=1e-12, abs=1e-14)
    assert found.is_same_top == (one.argmax() == other.argmax())


@given(SEEDS)
def test_nothing_differs_from_itself(seed: int) -> None:
    one, _ = rows(seed, 300, 3.0)
    assert Distribution(one).compare(one, 0).kl == 0.0
    assert Distribution(one).compare(one + np.float32(0), 0).is_same_top


def test_hopeless_tokens_do_no_harm() -> None:
    one = np.array([0.0, -3e4, -3e38], np.float32)
    found = Distribution(one).compare(one[::-1].copy(), 0)
    assert math.isfinite(found.kl) and found.kl > 1e38
    assert not found.is_same_top


def test_exp_is_right_to_the_last_places() -> None:
    x = -np.linspace(0, 600, 40_001)
    assert np.abs(_exp(x) / np.exp(x) - 1).max() < 1e-15
    assert _exp(np.array([-1e300]))[0] < 1e-300


@given(st.lists(st.floats(-1e6, 1e6), max_size=50), st.integers(0, 40_000))
def test_a_sum_is_near_and_its_order_fixed(values: list[float], num_zeros: int) -> None:
    array = np.array(values + [0.0] * num_zeros)
    assert ordered_sum(array) == pytest.approx(math.fsum(values), abs=1e-6)
    assert ordered_sum(array) == ordered_sum(array.copy())
