"""The attention that a pass's rows pay: what the tally kernel reads and adds to in the pass's table, and reading it."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvist.cache.sequence import Sequence
from kvist.kernels.layout import SPAN_TOKENS, TALLIES, TALLY_FIELDS, TALLY_STRIDE
from kvist.model.table import Part

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Tallied:
    """Rows of one sequence: the first one's number in the pass, how many, and the first one's slot."""

    sequence: Sequence
    first_row: int
    count: int
    first_slot: int

    @property
    def num_slots(self) -> int:
        """Room for the sums of one group, in whole spans."""
        return -(-(self.first_slot + self.count) // SPAN_TOKENS) * SPAN_TOKENS


def tallied(parts: Many[Part]) -> list[Tallied]:
    """Return the rows of a pass whose attention counts; their sequences have grown already."""
    found, row = [], 0
    for part in parts:
        count = len(part.token_ids)
        first, end = part.sequence.tallied(count)
        if first < end:
            start = row + count - (part.sequence.num_slots - first)
            found.append(Tallied(part.sequence, start, end - first, first))
        row += count
    return found


class Tallying:
    """``table`` is the pass's with room for the sums; ``num_units`` chunks a KV head add to them."""

    def __init__(self, table: Ints, found: Many[Tallied], *, num_threads: int, unit_rows: int) -> None:
        units: list[int] = []
        self.table, self.num_units = table, 0
        self._found = found
        self._starts: list[int] = []
        if not found:
            return
        self.num_units = sum(-(-rows.count // unit_rows) for rows in found)
        at = first = table.size + self.num_units * TALLY_FIELDS
        for rows in found:
            self._starts.append(at)
            for start in range(0, rows.count, unit_rows):
                count = min(unit_rows, rows.count - start)
                units += (rows.first_row + start, count, rows.first_slot + start, at, rows.num_slots)
            at += rows.num_slots * len(rows.sequence.tables)
        self._stride, self._num_threads = at - first, num_threads
        self.table = np.concatenate([table, np.array(units, np.int64), np.zeros(num_threads * self._stride, np.int64)])
        self.table[TALLIES], self.table[TALLY_STRIDE] = table.size, self._stride

    def give(self) -> None:
        """Add what the pass's queries paid to their sequences' tallies."""
        for rows, start in zip(self._found, self._starts, strict=True):
            size = rows.num_slots * len(rows.sequence.tables)
            sums = sum(self.table[start + thread * self._stride :][:size] for thread in range(self._num_threads))
            rows.sequence.add_tallies(list(np.reshape(sums, (-1, rows.num_slots))))
