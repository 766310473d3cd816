"""From a row of logits to a token: penalties, temperature, top-k, min-p, top-p, one draw.

Every step is exact, or an IEEE operation on each element, or a comparison; ties go to the lower id. So a row of
logits gives the same token on every processor, and never depends on what else is in the batch. Knows no text.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from kvist.engine.elementary import WEIGHT_BITS, log, softmax_weights
from kvist.engine.philox import draw_below
from kvist.engine.request import SamplingParams
from kvist.engine.result import TokenLogprobs
from kvist.errors import NumericsError

Row = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
_FEW = 256
_STRIPS_PER_TOKEN = 4


class History:
    """Which tokens a request has seen: ``seen`` [V] in prompt or answer, ``counts`` [V] in the answer alone."""

    def __init__(self, vocab_size: int, prompt_ids: tuple[int, ...]) -> None:
        self.seen = np.zeros(vocab_size, np.bool_)
        self.seen[list(prompt_ids)] = True
        self.counts = np.zeros(vocab_size, np.int32)

    def add(self, token_id: int) -> None:
        self.seen[token_id] = True
        self.counts[token_id] += 1


def choose_token(
    logits: Row,
    params: SamplingParams,
    history: History | None,
    *,
    seed: int,
    choice: int,
    position: int,
) -> int:
    """Return the token for ``position``, chosen from ``logits`` [V], which stay as they are.

    ``history`` may be None where nothing is penalised.

    Raises:
        NumericsError: a logit is NaN or infinite.
    """
    logits = adjusted(logits, params, history)
    best = int(np.argmax(logits))
    check_finite(logits[best], position)
    if params.is_greedy:
        return best
    ids = top_k_ids(logits, params.top_k) if 0 < params.top_k < logits.size else None
    values = logits if ids is None else logits[ids]
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the largest to -inf, which weighs 0
        weights = softmax_weights((values - logits[best]) / np.float32(max(params.temperature, 1e-30)))
    keep_min_p(weights, params.min_p)
    keep_top_p(weights, params.top_p)
    cumulative = np.cumsum(weights)
    drawn = draw_below(int(cumulative[-1]), seed=seed, choice=choice, position=position)
    index = int(np.searchsorted(cumulative, drawn, side="right"))
    return index if ids is None else int(ids[index])


def check_finite(largest: np.float32, position: int) -> None:
    """Raise NumericsError unless a row's largest logit, which is NaN if any is, is finite."""
    if not np.isfinite(largest):
        raise NumericsError(
            f"the logits for position {position} hold {largest}; the weights or the prompt overflow this model"
        )


def adjusted(logits: Row, params: SamplingParams, history: History | None) -> Row:
    """Return logits with bias and penalties; the same array where there are none."""
    if not params.has_penalty and not params.logit_bias:
        return logits
    logits = logits.copy()
    for token_id, bias in params.logit_bias.items():
        logits[token_id] += np.float32(bias)
    if not params.has_penalty:
        return logits
    assert history is not None, "a penalty needs the history"
    if params.repetition_penalty != 1:
        ids = np.flatnonzero(history.seen)
        factor, values = np.float32(params.repetition_penalty), logits[ids]
        logits[ids] = np.where(values > 0, values / factor, values * factor)
    if params.frequency_penalty or params.presence_penalty:
        ids = np.flatnonzero(history.counts)
        frequencies = history.counts[ids].astype(np.float32) * np.float32(params.frequency_penalty)
        logits[ids] -= frequencies + np.float32(params.presence_penalty)
    return logits


def top_k_ids(logits: Row, top_k: int) -> Ids:
    """Return the ids of the ``top_k`` largest, in ascending order; ties to the lower ids. ``top_k`` is 1 to V.

    The k-th largest *value* is unique whatever way a selection finds it, so only comparisons with it decide. It is
    looked for above a bound that at least ``top_k`` logits reach: the k-th largest of the maxima of strips.
    """
    strip = logits.size // (_STRIPS_PER_TOKEN * top_k)
    candidates = np.arange(logits.size)
    if strip > 1:
        maxima = logits[: logits.size // strip * strip].reshape(-1, strip).max(axis=1)
        candidates = np.flatnonzero(logits >= _kth_largest(maxima, top_k))
    values = logits[candidates]
    threshold = _kth_largest(values, top_k)
    is_tied = values == threshold
    num_tied = top_k - int(np.count_nonzero(values > threshold))
    is_kept = (values > threshold) | (is_tied & (np.cumsum(is_tied) <= num_tied))
    kept: Ids = candidates[is_kept]
    return kept


def _kth_largest(values: Row, k: int) -> np.float32:
    found: np.float32 = np.partition(values, values.size - k)[values.size - k]
    return found


def keep_min_p(weights: Ids, min_p: float) -> None:
    """Set to 0 all weights below ``min_p`` times the largest."""
    if min_p > 0:
        weights[weights.astype(np.float64) < float(weights.max()) * min_p] = 0


def keep_top_p(weights: Ids, top_p: float) -> None:
    """Set to 0 all but the fewest largest weights that hold ``top_p`` of their sum; ties to the lower index."""
    if top_p >= 1:
        return
    total = int(weights.sum())
    target = max(1, int(total * top_p))
    low = max(1, (total - target) // weights.size)  # weights below it sum to less than what may be left out
    threshold, sum_above = _nucleus_threshold(weights, target, low)
    weights[weights < threshold] = 0
    tied = np.flatnonzero(weights == threshold)
    weights[tied[-(-(target - sum_above) // threshold) :]] = 0


def _nucleus_threshold(weights: Ids, target: int, low: int) -> tuple[int, int]:
    """Return the largest t for which the weights >= t sum to ``target`` or more, and the sum of those > t.

    Bisects between ``low``, which qualifies, and ``high``, which doesn't; ``open_weights`` are those between.
    """
    high, sum_above = int(weights.max()) + 1, 0
    open_weights = weights[weights >= low]
    while open_weights.size > _FEW and high - low > 1:
        middle = max(low + 1, math.isqrt(low * high))
        is_upper = open_weights >= middle
        upper = open_weights[is_upper]
        upper_sum = int(upper.sum())
        if sum_above + upper_sum >= target:
            low, open_weights = middle, upper
        else:
            high, open_weights = middle, open_weights[~is_upper]
            sum_above += upper_sum
    descending = -np.sort(-open_weights)
    cumulative = sum_above + np.cumsum(descending)
    threshold = int(descending[np.searchsorted(cumulative, target, side="left")])
    return threshold, sum_above + int(descending[descending > threshold].sum())


def token_logprobs(logits: Row, token_id: int, num_top: int) -> TokenLogprobs:
    """Return the log-probabilities of ``token_id`` and of the ``num_top`` likeliest under softmax(logits)."""
    largest = logits.max()
    log_total = log(int(softmax_weights(logits - largest).sum()) / 2.0**WEIGHT_BITS)
    ids = top_k_ids(logits, min(num_top, logits.size)) if num_top else np.arange(0)
    ids = ids[np.argsort(-logits[ids], kind="stable")]

    def logprob(number: int) -> float:
        return float(logits[number]) - float(largest) - log_total

    return TokenLogprobs(token_id, logprob(token_id), tuple((int(n), logprob(int(n))) for n in ids))
