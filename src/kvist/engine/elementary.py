"""exp and log for sampling, as fixed sequences of IEEE operations, and softmax weights that are whole numbers.

NumPy's and the C library's versions differ in their last bits between processors; these do not, because each step
(add, multiply, round to the nearest, shift) is specified to the bit. Sums need no fixed order either: a weight is a
whole number of 2**-42, so adding weights is exact however it is done. A token less likely than 2**-43 of the
likeliest has weight 0 and is never drawn.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

WEIGHT_BITS = 42
"""The likeliest token weighs 2**42, so that two million tokens' weights sum below 2**63."""

_LOG2_E = np.float32(1.44269504)
_LN2_HIGH = np.float32(0.693359375)  # 9 bits, so that its product with a small whole number is exact
_LN2_LOW = np.float32(-2.12194440e-4)
_EXP_TERMS = tuple(np.float32(1.0 / n) for n in (5040, 720, 120, 24, 6, 2, 1, 1))
_LOWEST = np.float32(-80.0)
_CHUNK = 16384  # elements whose temporaries stay in a core's cache

_SQRT_HALF = 0.7071067811865476
_LN2_HIGH_DOUBLE, _LN2_LOW_DOUBLE = 0.693145751953125, 1.4286068203094173e-06
_LOG_TERMS = tuple(1.0 / n for n in range(23, 0, -2))


def softmax_weights(x: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Return rint(2**42 * e**x) for each ``x`` <= 0; relative error below 2e-7 before the rounding."""
    weights = np.empty(x.size, np.int64)
    for start in range(0, x.size, _CHUNK):
        weights[start : start + _CHUNK] = _scaled_exp(x[start : start + _CHUNK])
    return weights


def _scaled_exp(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
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
    exponents = n.astype(np.int32)
    exponents += 127 + WEIGHT_BITS
    exponents <<= 23
    result *= exponents.view(np.float32)
    return np.rint(result, out=result)


def log(x: float) -> float:
    """Return the natural logarithm of ``x``, a positive normal number, to 2 units in the last place."""
    bits = int(np.float64(x).view(np.int64))
    exponent = (bits >> 52) - 1022
    mantissa = float(np.int64((bits & ((1 << 52) - 1)) | (1022 << 52)).view(np.float64))  # in [0.5, 1)
    if mantissa < _SQRT_HALF:
        mantissa *= 2.0
        exponent -= 1
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = 0.0
    for term in _LOG_TERMS:
        series = series * square + term
    return exponent * _LN2_HIGH_DOUBLE + (2.0 * s * series + exponent * _LN2_LOW_DOUBLE)
