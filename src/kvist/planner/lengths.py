"""How many users fit when their lengths differ: at a stated probability of running out, not at the maximum.

Lengths are log-normal, given by their mean and 99th percentile. The cache of N users is a sum of N such; the sum
is matched by a log-normal of the same mean and variance (Fenton 1960), which is exact for one user and tends to the
normal law for many. A prefix that all share is stored once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

from kvist.errors import SpecError

_NUM_POINTS = 2000
_Z99 = NormalDist().inv_cdf(0.99)
MAX_USERS = 1 << 24


@dataclass(frozen=True)
class Lengths:
    """A log-normal of tokens: ``mean`` and ``p99``; ``longest`` cuts it off."""

    mean: float
    p99: float
    longest: int

    def __post_init__(self) -> None:
        if self.mean < 1:
            raise SpecError(f"--context-mean must be at least 1, got {self.mean}")
        if self.p99 < self.mean:
            raise SpecError(f"--context-p99 {self.p99} must not be below --context-mean {self.mean}")
        if self.p99 > self.mean * math.exp(_Z99 * _Z99 / 2):
            most = int(self.mean * math.exp(_Z99 * _Z99 / 2))
            raise SpecError(f"--context-p99 {self.p99} is more than a log-normal of mean {self.mean} reaches ({most})")

    @property
    def sigma(self) -> float:
        """The spread: mean = exp(mu + s^2/2), p99 = exp(mu + z s), so s^2/2 - z s + ln(p99/mean) = 0."""
        return _Z99 - math.sqrt(_Z99 * _Z99 - 2 * math.log(self.p99 / self.mean))

    def quantiles(self) -> list[int]:
        """Return lengths at evenly spaced probabilities."""
        law = NormalDist(math.log(self.mean) - self.sigma**2 / 2, self.sigma) if self.sigma else None
        shares = [(point + 0.5) / _NUM_POINTS for point in range(_NUM_POINTS)]
        lengths = [math.exp(law.inv_cdf(share)) if law else self.mean for share in shares]
        return [min(max(1, round(length)), self.longest) for length in lengths]


@dataclass(frozen=True)
class Demand:
    """What one user takes: mean and variance of bytes, and what all share, stored once."""

    mean_bytes: float
    variance: float
    shared_bytes: int

    def bytes_at(self, num_users: int, probability: float) -> float:
        """Return the bytes that ``num_users`` exceed with ``probability``."""
        mean, variance = num_users * self.mean_bytes, num_users * self.variance
        if not mean:
            return float(self.shared_bytes)
        sigma2 = math.log1p(variance / (mean * mean))
        z = NormalDist().inv_cdf(1 - probability)
        return self.shared_bytes + mean * math.exp(z * math.sqrt(sigma2) - sigma2 / 2)

    def users_within(self, num_bytes: int, probability: float) -> int:
        """Return the most users whose demand exceeds ``num_bytes`` with at most ``probability``."""
        low, high = 0, MAX_USERS
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.bytes_at(middle, probability) <= num_bytes else (low, middle)
        return low


def demand(lengths: Lengths, charged_bytes: Callable[[int], int], shared_tokens: int, shared_bytes: int) -> Demand:
    """Return what a user of ``lengths`` takes beyond a prefix of ``shared_tokens`` that costs ``shared_bytes`` once.

    ``charged_bytes`` prices a whole sequence; a user shorter than the prefix is as long as it.
    """
    costs: dict[int, int] = {}
    total = squares = 0.0
    for length in lengths.quantiles():
        tokens = max(length, shared_tokens)
        if tokens not in costs:
            costs[tokens] = charged_bytes(tokens) - shared_bytes
        total += costs[tokens]
        squares += float(costs[tokens]) ** 2
    mean = total / _NUM_POINTS
    return Demand(mean, max(0.0, squares / _NUM_POINTS - mean * mean), shared_bytes)
