"""What score-based retention keeps, against sorting by hand, and that moving loses nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.cache.retention import POOL_WIDTH, end_tallied, first_tallied, kept_slots, moves, pooled
from kvist.spec.retention import ALL, H2O_PERIOD, OBSERVED_TOKENS, RetentionSpec

Ints = np.ndarray[Any, np.dtype[np.int64]]


@st.composite
def slots(draw: st.DrawFn, num_kept: int, num_slots: int) -> tuple[Ints, Ints]:
    """Tallies, many of them equal, and positions in any order."""
    tally = draw(st.lists(st.integers(0, 5), min_size=num_slots, max_size=num_slots))
    positions = draw(st.permutations(range(7, 7 + num_slots)))
    return np.array(tally, np.int64), np.array(positions, np.int64)


@given(st.data(), st.integers(64, 90))
def test_h2o_keeps_the_newest_half_and_the_most_attended(data: st.DataObject, num_kept: int) -> None:
    tally, positions = data.draw(slots(num_kept, num_kept + H2O_PERIOD))
    is_kept = kept_slots(RetentionSpec("h2o", num_kept), tally, positions)
    order = sorted(range(tally.size), key=lambda slot: positions[slot])
    newest, others = order[-(num_kept // 2) :], order[: -(num_kept // 2)]
    others.sort(key=lambda slot: (-tally[slot], positions[slot]))
    assert sorted(np.flatnonzero(is_kept)) == sorted(newest + others[: num_kept - num_kept // 2])


@given(st.data(), st.integers(64, 70), st.integers(1, 60))
def test_snapkv_keeps_the_observed_and_what_they_attend_to(data: st.DataObject, num_kept: int, more: int) -> None:
    tally, _ = data.draw(slots(num_kept, num_kept + more))
    size = tally.size
    is_kept = kept_slots(RetentionSpec("snapkv", num_kept), tally, np.arange(size))
    assert is_kept[size - OBSERVED_TOKENS :].all()
    others, side = size - OBSERVED_TOKENS, POOL_WIDTH // 2
    score = [max(tally[max(0, slot - side) : min(others, slot + side + 1)]) for slot in range(others)]
    best = sorted(range(others), key=lambda slot: (-score[slot], slot))[: num_kept - OBSERVED_TOKENS]
    assert sorted(np.flatnonzero(is_kept[:others])) == sorted(best)


def test_a_neighbour_of_a_peak_is_kept() -> None:
    assert pooled(np.array([0, 0, 0, 0, 9, 0, 0, 0, 0])).tolist() == [0, 9, 9, 9, 9, 9, 9, 9, 0]


@given(st.lists(st.booleans(), min_size=1, max_size=200))
def test_moving_brings_all_that_is_kept_to_the_front(kept: list[bool]) -> None:
    is_kept = np.array(kept)
    source, target = moves(is_kept)
    held = np.arange(is_kept.size)
    held[target] = held[source]
    num_kept = int(is_kept.sum())
    assert sorted(held[:num_kept]) == np.flatnonzero(is_kept).tolist()
    stayed = np.setdiff1d(np.arange(num_kept), target)
    assert (held[stayed] == stayed).all()
    assert source.size <= min(num_kept, is_kept.size - num_kept)


@pytest.mark.parametrize(
    ("retention", "prompt_tokens", "expected"),
    [
        (ALL, 500, None),
        (RetentionSpec("window", 64), 500, None),
        (RetentionSpec("h2o", 64), 500, (0, None)),
        (RetentionSpec("snapkv", 64), 500, (500 - OBSERVED_TOKENS, 500)),
        (RetentionSpec("snapkv", 64), 64, None),
    ],
)
def test_whose_attention_counts(retention: RetentionSpec, prompt_tokens: int, expected: Any) -> None:
    first = first_tallied(retention, prompt_tokens)
    assert first == (None if expected is None else expected[0])
    if expected is not None:
        assert end_tallied(retention, prompt_tokens) == expected[1]
