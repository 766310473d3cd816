"""The random numbers are Philox's, and keyed by what they are said to be keyed by."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvist.engine.philox import draw_below, philox

words = st.integers(0, 2**64 - 1)


@given(words, words, st.integers(0, 2**63), words)
def test_equals_numpy(seed: int, choice: int, low: int, high: int) -> None:
    key = np.array([seed, choice], np.uint64)
    other = np.random.Philox(key=key, counter=np.array([low, high, 1, 2], np.uint64))
    assert philox((seed, choice), (low + 1, high, 1, 2)) == tuple(int(n) for n in other.random_raw(4))


def test_a_draw_depends_on_seed_choice_and_position() -> None:
    keys = [(seed, choice, position) for seed in range(6) for choice in range(6) for position in range(6)]
    drawn = {draw_below(2**63, seed=seed, choice=choice, position=position) for seed, choice, position in keys}
    assert len(drawn) == len(keys)


@given(st.integers(1, 2**63), words)
def test_a_draw_is_below_its_total(total: int, seed: int) -> None:
    assert 0 <= draw_below(total, seed=seed, choice=0, position=0) < total


def test_draws_are_even() -> None:
    counts = np.bincount([draw_below(10, seed=1, choice=0, position=position) for position in range(20000)])
    assert counts.min() > 1880
    assert counts.max() < 2120
