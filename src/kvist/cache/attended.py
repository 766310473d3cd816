"""What a sequence that keeps tokens by the attention they got knows of its slots in one layer group."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvist.cache.retention import kept_slots, moves
from kvist.spec.retention import RetentionSpec

Ints = npt.NDArray[np.int64]


class Attended:
    """For each slot the position of the token in it, and the attention that it got so far (``kernels.tally``)."""

    def __init__(self) -> None:
        self.positions: Ints = np.zeros(0, np.int64)
        self.tally: Ints = np.zeros(0, np.int64)

    @property
    def num_slots(self) -> int:
        return self.positions.size

    def copy(self) -> Attended:
        other = Attended()
        other.positions, other.tally = self.positions.copy(), self.tally.copy()
        return other

    def extend(self, first_position: int, count: int) -> None:
        """Add slots for the next tokens."""
        new = np.arange(first_position, first_position + count)
        self.positions = np.concatenate([self.positions, new])
        self.tally = np.concatenate([self.tally, np.zeros(count, np.int64)])

    def cut(self, num_slots: int) -> None:
        """Forget the slots from ``num_slots`` on."""
        self.positions, self.tally = self.positions[:num_slots], self.tally[:num_slots]

    def add(self, sums: Ints) -> None:
        """Add what a pass's queries gave to each slot."""
        self.tally = self.tally + sums[: self.num_slots]

    def choose(self, retention: RetentionSpec) -> tuple[Ints, Ints]:
        """Keep what ``retention`` says; return (from, to) slots of the tokens that are to be moved."""
        is_kept = kept_slots(retention, self.tally, self.positions)
        source, target = moves(is_kept)
        self.positions[target], self.tally[target] = self.positions[source], self.tally[source]
        self.cut(int(np.count_nonzero(is_kept)))
        return source, target
