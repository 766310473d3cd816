"""What computes keys and values, in a few bytes: two models, or one converted otherwise, share no blocks."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

NUMERICS = 2
"""Raised with any change of the arithmetic between token ids and keys and values."""

SAMPLE_EVERY, SAMPLE_BYTES = 16_384, 64
"""Of so many bytes of packed weights so many are looked at: 0.4 MB of 100, a few milliseconds. Another training run
changes them all; somebody who changes single numbers by hand has to give a salt."""


def model_identity(facts: tuple[object, ...], arena: npt.NDArray[np.uint8]) -> bytes:
    """Return a digest of ``facts`` (frozen, with a ``repr`` that says all: spec, switches) and the packed weights."""
    state = blake2b(repr((NUMERICS, facts, arena.nbytes)).encode(), digest_size=16)
    whole = arena.size // SAMPLE_EVERY * SAMPLE_EVERY
    state.update(arena[:whole].reshape(-1, SAMPLE_EVERY)[:, :SAMPLE_BYTES].tobytes())
    state.update(arena[whole:].tobytes())
    return state.digest()
