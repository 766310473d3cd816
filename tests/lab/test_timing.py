from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.lab.timing import Timing, measure, quantile


def test_quantiles_lie_between_the_nearest_samples() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([1.0, 2.0], 0.5) == 1.5
    assert quantile([5.0], 0.9) == 5.0
    assert quantile([float(n) for n in range(11)], 0.9) == 9.0


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=30))
def test_the_spread_holds_the_median(samples: list[float]) -> None:
    timing = Timing(tuple(samples))
    assert min(samples) <= timing.low_s <= timing.median_s <= timing.high_s <= max(samples)


def test_warmup_and_reset_are_not_measured() -> None:
    calls: list[str] = []
    timing = measure(lambda: calls.append("work"), repeats=3, warmup=2, reset=lambda: calls.append("reset"))
    assert calls == ["work", "reset"] * 5
    assert len(timing.samples_s) == 3
    assert timing.as_json()["repeats"] == 3


def test_a_timing_without_samples_is_a_mistake() -> None:
    with pytest.raises(AssertionError):
        Timing(())
