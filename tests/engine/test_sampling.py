"""The choice of a token, against a slow one in plain Python that sorts and uses fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kvist.engine.elementary import softmax_weights
from kvist.engine.philox import draw_below
from kvist.engine.request import SamplingParams
from kvist.engine.sampling import History, adjusted, choose_token, keep_top_p, token_logprobs, top_k_ids
from kvist.errors import NumericsError

# Halves, so that ties are common.
logit_rows = arrays(np.float32, st.integers(1, 60), elements=st.integers(-12, 12).map(lambda n: n / 2))
settings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.25, 1.0, 2.0]),
    top_k=st.integers(0, 70),
    top_p=st.sampled_from([0.01, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
)


def slow_choice(logits: np.ndarray, params: SamplingParams, seed: int, position: int) -> int:
    """Sort by falling logit and rising id, cut, and walk until the draw is used up."""
    order = sorted(range(len(logits)), key=lambda n: (-logits[n], n))
    kept = order[: params.top_k or None]
    scaled = (logits[kept] - logits.max()) / np.float32(params.temperature)
    weights = dict(zip(kept, softmax_weights(scaled).tolist(), strict=True))
    least = params.min_p * max(weights.values())
    kept = [n for n in kept if weights[n] >= least]
    if params.top_p < 1:
        target = max(1, int(sum(weights[n] for n in kept) * params.top_p))
        total = Fraction(0)
        for count, n in enumerate(kept, start=1):
            total += weights[n]
            if total >= target:
                kept = kept[:count]
                break
    drawn = draw_below(sum(weights[n] for n in kept), seed=seed, choice=0, position=position)
    for n in sorted(kept):
        drawn -= weights[n]
        if drawn < 0:
            return n
    raise AssertionError("the draw was larger than the sum")


def choice(logits: np.ndarray, params: SamplingParams, seed: int = 0, position: int = 0) -> int:
    return choose_token(logits, params, History(len(logits), ()), seed=seed, choice=0, position=position)


@given(logit_rows, settings, st.integers(0, 2**64 - 1), st.integers(0, 1000))
def test_equals_the_slow_choice(logits: np.ndarray, params: SamplingParams, seed: int, position: int) -> None:
    assert choice(logits, params, seed, position) == slow_choice(logits, params, seed, position)


def test_equals_the_slow_choice_on_a_whole_vocabulary() -> None:
    rng = np.random.default_rng(0)
    for spread, position in ((0.1, 0), (1.0, 1), (4.0, 2)):
        logits = (rng.standard_normal(49152) * spread).astype(np.float32)
        for params in (
            SamplingParams(temperature=0.8, top_p=0.95),
            SamplingParams(temperature=1.0, top_k=50),
            SamplingParams(temperature=1.3, top_k=400, top_p=0.7, min_p=0.01),
        ):
            assert choice(logits, params, 7, position) == slow_choice(logits, params, 7, position)


def test_greedy_takes_the_lower_of_two_equal() -> None:
    logits = np.array([0, 3, 1, 3], np.float32)
    assert choice(logits, SamplingParams()) == 1
    assert choice(logits, SamplingParams(temperature=1, top_k=1)) == 1
    assert choice(logits, SamplingParams(temperature=1, top_p=0.01)) == 1


@given(logit_rows, st.integers(1, 60))
def test_top_k_ties_go_to_the_lower_id(logits: np.ndarray, top_k: int) -> None:
    top_k = min(top_k, len(logits))
    order = sorted(range(len(logits)), key=lambda n: (-logits[n], n))
    assert top_k_ids(logits, top_k).tolist() == sorted(order[:top_k])


def test_top_k_among_many() -> None:
    logits = np.random.default_rng(0).integers(-50, 50, 50000).astype(np.float32)
    order = sorted(range(len(logits)), key=lambda n: (-logits[n], n))
    for top_k in (1, 7, 300, 5000, 50000):
        assert top_k_ids(logits, top_k).tolist() == sorted(order[:top_k])


def test_top_p_keeps_the_fewest() -> None:
    weights = np.array([1, 5, 2, 5, 1], np.int64)
    keep_top_p(weights, 10 / 14)
    assert weights.tolist() == [0, 5, 0, 5, 0]


def test_frequencies_follow_the_distribution() -> None:
    logits = np.array([0, 1, 2], np.float32)
    expected = np.exp(logits) / np.exp(logits).sum()
    chosen = [choice(logits, SamplingParams(temperature=1), seed=3, position=position) for position in range(6000)]
    assert np.abs(np.bincount(chosen) / 6000 - expected).max() < 0.02


def test_a_choice_depends_on_its_own_row_only() -> None:
    rows = np.random.default_rng(0).standard_normal((20, 300)).astype(np.float32)
    params = SamplingParams(temperature=1, top_p=0.9)
    forward = [choice(row, params, 5, position) for position, row in enumerate(rows)]
    backward = [choice(rows[position].copy(), params, 5, position) for position in reversed(range(20))]
    assert forward == backward[::-1]


def test_penalties_and_bias() -> None:
    logits = np.array([2, -2, 1, 0, 0], np.float32)
    history = History(5, (0, 1))
    for token_id in (2, 2, 3):
        history.add(token_id)
    params = SamplingParams(
        repetition_penalty=2, presence_penalty=0.5, frequency_penalty=0.25, logit_bias={3: 1.0, 4: -3.0}
    )
    # 0: 2/2; 1: -2*2; 2: 1/2 - 2*0.25 - 0.5; 3: (0+1)/2 - 0.25 - 0.5; 4: 0-3, not seen
    assert adjusted(logits, params, history).tolist() == [1.0, -4.0, -0.5, -0.25, -3.0]
    assert logits.tolist() == [2, -2, 1, 0, 0]


def test_a_tiny_temperature_is_greedy() -> None:
    logits = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    assert choice(logits, SamplingParams(temperature=1e-300)) == int(np.argmax(logits))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_refused(bad: float, temperature: float) -> None:
    logits = np.array([0, bad, 1], np.float32)
    with pytest.raises(NumericsError, match="position 7"):
        choice(logits, SamplingParams(temperature=temperature), position=7)


@given(logit_rows, st.integers(0, 8))
def test_logprobs(logits: np.ndarray, num_top: int) -> None:
    exact = logits - np.log(np.exp(logits.astype(np.float64)).sum())
    found = token_logprobs(logits, 0, num_top)
    order = sorted(range(len(logits)), key=lambda n: (-logits[n], n))[:num_top]
    assert [token_id for token_id, _ in found.top] == order
    assert [logprob for _, logprob in found.top] == pytest.approx(exact[order], abs=1e-6)
    assert found.logprob == pytest.approx(exact[0], abs=1e-6)
