"""How far one distribution over the next token is from another, in float64 and to the same bits everywhere.

exp is a fixed polynomial and a sum a fixed tree, so that two runs on two processors print the same figures: NumPy's own
change their last bits with the instruction set. Knows rows of logits and nothing of what made them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import factorial

import numpy as np
import numpy.typing as npt

from kvist.engine.elementary import log

Row = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

_CHUNK = 16384  # elements whose temporaries stay in a core's cache; a power of two
_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.6931471803691238  # 33 bits, so that its product with a small whole number is exact
_LN2_LOW = 1.9082149292705877e-10
_EXP_TERMS = tuple(1.0 / factorial(n) for n in range(13, -1, -1))
_LOWEST = -700.0


@dataclass(frozen=True)
class Comparison:
    """One position. ``kl`` is KL(reference || candidate) and ``nll`` the candidate's loss at the token that came, in
    nats; ``is_same_top`` says whether both find the same token likeliest."""

    kl: float
    nll: float
    is_same_top: bool


class Distribution:
    """The softmax of a row of logits [V], unnormalised: ``weights`` are e**(logit - largest), ``total`` their sum."""

    def __init__(self, logits: Row) -> None:
        self.logits = logits.astype(np.float64)
        self.top = int(np.argmax(logits))  # ties to the lower id
        self.largest = float(self.logits[self.top])
        self.weights = _exp(self.logits - self.largest)
        self.total = ordered_sum(self.weights)
        self.log_total = log(self.total)

    def nll(self, token_id: int) -> float:
        """Return the negative log-probability of a token in nats."""
        return self.largest + self.log_total - float(self.logits[token_id])

    def kl(self, other: Distribution) -> float:
        """Return KL(self || other) in nats: the mean, under ``self``, of how much likelier a token is here."""
        mean = ordered_sum(self.weights * (self.logits - other.logits)) / self.total
        shift = (other.largest - self.largest) + (other.log_total - self.log_total)
        return max(0.0, mean + shift)  # rounding may leave a few 1e-16 below zero

    def compare(self, candidate: Row, token_id: int) -> Comparison:
        """Compare ``candidate`` [V] with this reference at a position where ``token_id`` came next."""
        other = Distribution(candidate)
        return Comparison(self.kl(other), other.nll(token_id), other.top == self.top)


def ordered_sum(values: Doubles) -> float:
    """Return the sum of ``values`` in an order that their number alone decides."""
    lanes = np.zeros(_CHUNK)
    for start in range(0, values.size, _CHUNK):
        chunk = values[start : start + _CHUNK]
        lanes[: chunk.size] += chunk
    width = _CHUNK
    while width > 1:
        width //= 2
        lanes[:width] += lanes[width : 2 * width]
    return float(lanes[0])


def _exp(x: Doubles) -> Doubles:
    """Return e**x for ``x`` <= 0, to 4e-16 of itself; below e**-700 that number."""
    result = np.empty_like(x)
    for start in range(0, x.size, _CHUNK):
        result[start : start + _CHUNK] = _exp_chunk(x[start : start + _CHUNK])
    return result


def _exp_chunk(x: Doubles) -> Doubles:
    """e**x = 2**n * e**r with |r| <= ln(2)/2, where e**r is a polynomial and 2**n an exponent field."""
    r = np.maximum(x, _LOWEST)
    n = r * _LOG2_E
    np.rint(n, out=n)
    product = n * _LN2_HIGH
    r -= product
    np.multiply(n, _LN2_LOW, out=product)
    r -= product
    result = r * _EXP_TERMS[0]
    result += _EXP_TERMS[1]
    for term in _EXP_TERMS[2:]:
        result *= r
        result += term
    exponents = n.astype(np.int64)
    exponents += 1023
    exponents <<= 52
    result *= exponents.view(np.float64)
    return result
