"""The forward pass as a program: one line an operation, in a flat table that the team's interpreter runs.

Written once (``model.writer``) for a model, a cache and a number of rows. What changes from pass to pass are the counts
of chunks, which are linear in the pass's numbers, and the pass's own table (``model.table``). Knows no weights and no
model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kvist.kernels import jit
from kvist.kernels.layout import (
    CHUNKS,
    CONTROL_HEAD,
    COUNTERS,
    FIELDS,
    HAS_BARRIER,
    KERNEL,
    WORK_HEAD,
    padded,
)

MAX_CONTROLS = 64
"""Control blocks that a program keeps ready, some tens of kilobytes each."""


@dataclass(frozen=True)
class Counts:
    """How many chunks a line has: so many for each of a pass's rows, and so on.

    ``row_chunks``: for each group of rows that are worked on one by one. ``split_rows``: for each row whose spans are
    attended apart. ``outputs``: for each row of logits. ``tiles``: for each part of an attention tile. ``fixed``: in
    each pass. ``if_outputs``: in each that has rows of logits. ``tallies``: for some rows each whose attention is
    tallied.
    """

    rows: int = 0
    row_chunks: int = 0
    split_rows: int = 0
    outputs: int = 0
    tiles: int = 0
    fixed: int = 0
    if_outputs: int = 0
    tallies: int = 0


@dataclass
class Work:
    """Places in the work arena, given out one after the other: byte offsets, multiples of 64."""

    num_bytes: int = WORK_HEAD

    def place(self, num_bytes: int) -> int:
        offset, self.num_bytes = self.num_bytes, padded(self.num_bytes + num_bytes, 64)
        return offset


Key = tuple[Callable[..., Any], tuple[int, ...]]
"""What makes a kernel, and the compile-time constants that it is made with."""


@dataclass
class Kernels:
    """The kernels that programs name, by the number under which they name them; named first, then compiled."""

    keys: list[Key] = field(default_factory=list)
    _compiled: list[Any] = field(default_factory=list)
    _addresses: Any = None

    def number(self, make: Callable[..., Any], *constants: int) -> int:
        """The number of ``make(*constants)``."""
        key = (make, constants)
        if key not in self.keys:
            self.keys.append(key)
        return self.keys.index(key)

    @property
    def addresses(self) -> Any:
        """What the interpreter calls, by number."""
        assert len(self._compiled) == len(self.keys), (len(self._compiled), len(self.keys))
        return self._addresses

    def compile(self) -> None:
        """Compile those that aren't yet."""
        if len(self._compiled) < len(self.keys):
            self._compiled += [make(*constants) for make, constants in self.keys[len(self._compiled) :]]
            self._addresses = jit.addresses(self._compiled)


class Program:
    """Lines, each with the counts that its number of chunks follows. ``table`` is int64 [lines, FIELDS].

    ``layers`` says for each line which layer it belongs to, -1 for none.
    """

    def __init__(self) -> None:
        self.layer = -1
        self.layers: list[int] = []
        self._lines: list[list[int]] = []
        self._counts: list[tuple[int, ...]] = []
        self._controls: dict[tuple[int, ...], npt.NDArray[np.int64]] = {}

    def add(
        self, kernel: int, counts: Counts, columns: Any, values: Mapping[str, int], *, has_barrier: bool = True
    ) -> None:
        """Add a line: ``columns`` are the kernel's (``kernels.layout.fields``), each of which ``values`` has."""
        assert set(values) == set(columns._fields), set(values) ^ set(columns._fields)
        line = [0] * FIELDS
        line[KERNEL], line[HAS_BARRIER] = kernel, int(has_barrier)
        for name, number in values.items():
            line[getattr(columns, name)] = int(number)
        self._lines.append(line)
        self.layers.append(self.layer)
        self._counts.append(astuple(counts))

    @functools.cached_property
    def table(self) -> npt.NDArray[np.int64]:
        return np.array(self._lines, np.int64)

    @functools.cached_property
    def _counted(self) -> npt.NDArray[np.int64]:
        """Counts by line."""
        return np.array(self._counts, np.int64)

    def control(
        self,
        *,
        num_rows: int,
        num_row_chunks: int,
        num_split_rows: int,
        num_outputs: int,
        num_tile_parts: int,
        num_tallies: int = 0,
    ) -> npt.NDArray[np.int64]:
        """A fresh control block for a pass of so many rows, groups of rows, rows attended apart, and so on.

        ``num_tallies`` counts pieces of the rows whose attention is tallied.
        """
        key = (num_rows, num_row_chunks, num_split_rows, num_outputs, num_tile_parts, num_tallies)
        if key not in self._controls:
            if len(self._controls) >= MAX_CONTROLS:
                self._controls.clear()
            control = np.zeros(CONTROL_HEAD + len(self._lines) * COUNTERS, np.int64)
            counts = Counts(*key[:5], fixed=1, if_outputs=int(num_outputs > 0), tallies=num_tallies)
            numbers = np.array(astuple(counts), np.int64)
            control[CONTROL_HEAD + CHUNKS :: COUNTERS] = self._counted @ numbers
            self._controls[key] = control
        return self._controls[key].copy()
