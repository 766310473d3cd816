"""How two implementations' logits and greedy tokens are compared, and how far apart they may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

TOLERANCE = 1e-4
"""Largest difference of a logit, as a share of the oracle row's largest absolute value. Both sides round every
operation to float32 in an order of their own: measured differences are near 1e-6, a missing feature's above 1e-2."""


def row_errors(logits: Array, oracle: Array) -> Array:
    """Return each row's largest difference as a share of the oracle row's largest absolute value.  # [R, V] -> [R]"""
    assert logits.shape == oracle.shape, (logits.shape, oracle.shape)
    assert np.isfinite(logits).all() and np.isfinite(oracle).all()
    difference = np.abs(logits.astype(np.float64) - oracle.astype(np.float64))
    return np.asarray(difference.max(axis=-1) / np.abs(oracle).max(axis=-1))


def margins(oracle: Array) -> Array:
    """Return how far each row's two best logits lie apart, as a share of the row's largest.  # [R, V] -> [R]"""
    second, best = np.sort(oracle, axis=-1)[:, -2:].T
    return np.asarray((best - second) / np.abs(oracle).max(axis=-1))


def count_near_ties(chosen: Sequence[int], expected: Sequence[int], margin: Array) -> int:
    """Return how many chosen tokens are not the expected ones; asserts that the oracle had a near tie at each.

    ``expected`` and ``margin`` have to come from the very tokens before each choice, so that one difference does
    not make every later token differ.
    """
    assert len(chosen) == len(expected) == len(margin), (len(chosen), len(expected), len(margin))
    differing = [i for i, pair in enumerate(zip(chosen, expected, strict=True)) if pair[0] != pair[1]]
    wrong = [i for i in differing if margin[i] > TOLERANCE]
    assert not wrong, f"tokens {wrong} differ from the oracle's, whose two best lie further apart than the tolerance"
    return len(differing)
