"""A number carried by a value's type, so that kernels are specialised by it and found in the compile cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Static:
    """A compile-time constant: head dim, rows of a tile, codec."""

    number: int

    def __index__(self) -> int:
        return self.number
