"""Random numbers that are the same with every NumPy and on every CPU.

PCG64's raw 64-bit stream is guaranteed by NumPy to stay as it is (the distributions of ``Generator`` are not), and
everything made of it here is integer arithmetic and one multiplication.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


class Stream:
    """A stream of its own for each key, e.g. ``Stream(seed, "model.norm.weight")``."""

    def __init__(self, *key: int | str) -> None:
        digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
        self._bits = np.random.PCG64(int.from_bytes(digest, "little"))

    def raw(self, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return np.asarray(self._bits.random_raw(count), dtype=np.uint64)

    def choice(self, options: Sequence[T]) -> T:
        return options[int(self.raw(1)[0] % np.uint64(len(options)))]

    def integers(self, count: int, below: int) -> list[int]:
        """Return ``count`` integers in 0..below-1."""
        return [int(x) for x in self.raw(count) % np.uint64(below)]

    def normal(self, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return nearly normal float32 of mean 0 and deviation 1: each the sum of four 16-bit uniform integers."""
        raw = self.raw(int(np.prod(shape)))
        sums = sum(((raw >> np.uint64(16 * i)) & np.uint64(0xFFFF)).astype(np.int64) for i in range(4))
        deviation = 37837.22  # sqrt(4 * (65536 ** 2 - 1) / 12)
        return ((sums - 2 * 65535) * (1 / deviation)).astype(np.float32).reshape(shape)
