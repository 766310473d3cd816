"""Random numbers without a state: Philox 4x64-10, a function of a key and a counter.

The key is (seed, choice index) and the counter the position, so a token's draw depends on nothing that happened
before: not on the batch, a preemption, or how many numbers others drew.
Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011), section 3.3.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Return four independent 64-bit numbers; all inputs are below 2**64."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(_ROUNDS):
        first, second = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (second >> 64) ^ c1 ^ k0, second & _MASK, (first >> 64) ^ c3 ^ k1, first & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def draw_below(total: int, *, seed: int, choice: int, position: int) -> int:
    """Return a number in ``range(total)`` for the token at ``position``; ``total`` is at most 2**63."""
    return philox((seed, choice), (position, 0, 0, 0))[0] * total >> 64
