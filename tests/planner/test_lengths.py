"""Lengths that differ: the law's mean and percentile, and demands of one and of many."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.errors import SpecError
from kvist.planner.lengths import Lengths, demand

BYTES = 1000


def linear(num_tokens: int) -> int:
    return BYTES * num_tokens


def test_the_law_has_the_mean_and_the_percentile_that_were_given() -> None:
    lengths = Lengths(3000, 12000, 1 << 30).quantiles()
    assert statistics.fmean(lengths) == pytest.approx(3000, rel=0.01)
    assert sorted(lengths)[int(0.99 * len(lengths))] == pytest.approx(12000, rel=0.02)


def test_equal_lengths_need_no_reserve() -> None:
    found = demand(Lengths(2000, 2000, 4000), linear, 0, 0)
    assert found.bytes_at(10, 0.001) == pytest.approx(10 * 2000 * BYTES)
    assert found.users_within(10 * 2000 * BYTES, 0.001) == 10


def test_one_user_is_exact() -> None:
    """The demand that one user exceeds once in a hundred is that of the 99th percentile."""
    found = demand(Lengths(3000, 12000, 1 << 30), linear, 0, 0)
    assert found.bytes_at(1, 0.01) == pytest.approx(12000 * BYTES, rel=0.05)


def test_many_users_exceed_it_as_often_as_is_said() -> None:
    law = Lengths(3000, 12000, 1 << 30)
    found = demand(law, linear, 0, 0)
    lengths, dice = law.quantiles(), random.Random(7)
    limit = found.bytes_at(50, 0.05)
    times = sum(sum(dice.choices(lengths, k=50)) * BYTES > limit for _ in range(4000))
    assert 0.035 < times / 4000 < 0.065


def test_a_shared_prefix_is_stored_once() -> None:
    law = Lengths(3000, 12000, 1 << 30)
    alone, shared = demand(law, linear, 0, 0), demand(law, linear, 1500, 1500 * BYTES)
    assert shared.bytes_at(100, 0.01) < alone.bytes_at(100, 0.01)
    assert shared.shared_bytes == 1500 * BYTES
    assert shared.users_within(400_000_000, 0.01) > alone.users_within(400_000_000, 0.01)


@given(st.integers(100, 5000), st.floats(1.0, 10.0), st.integers(1, 1000), st.floats(0.001, 0.4))
def test_users_and_bytes_are_inverse(mean: int, ratio: float, users: int, probability: float) -> None:
    found = demand(Lengths(mean, mean * ratio, 1 << 30), linear, 0, 0)
    needed = int(found.bytes_at(users, probability)) + 1
    assert found.users_within(needed, probability) >= users
    assert found.bytes_at(users, probability) <= found.bytes_at(users + 1, probability)
    assert found.bytes_at(users, probability) >= found.bytes_at(users, min(0.9, 2 * probability))


@pytest.mark.parametrize(
    ("mean", "p99", "message"),
    [
        (0.5, 10, "--context-mean must be at least 1"),
        (3000, 2000, "--context-p99 2000 must not be below --context-mean 3000"),
        (10, 100_000, "more than a log-normal of mean 10 reaches"),
    ],
)
def test_laws_that_do_not_exist(mean: float, p99: float, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Lengths(mean, p99, 1 << 20)
