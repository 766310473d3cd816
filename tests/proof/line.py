"""One line of a program by itself: arrays get places in an arena, its kernel is run, and what it wrote is read."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from kvist.kernels.layout import FIELDS, NUM_ROWS, ROW_STEP, SCRATCH, SCRATCH_STRIDE, TABLE_HEAD, WORK_HEAD

Array = np.ndarray[Any, Any]


class Arena:
    """Flat bytes in which arrays get places; what lies between them is NaN, and its last 64 bytes are nobody's."""

    def __init__(self, head: int = 0) -> None:
        self._parts: list[tuple[int, Array]] = []
        self._size = head
        self._bytes: Array | None = None

    def put(self, array: Array) -> int:
        """The offset that the array gets."""
        assert self._bytes is None
        array = np.ascontiguousarray(array)
        offset = self._size
        self._parts.append((offset, array.view(np.uint8).reshape(-1)))
        self._size += -(-array.nbytes // 64) * 64
        return offset

    def room(self, *shape: int, dtype: Any = np.float32) -> int:
        """The offset of an array that a kernel is to fill."""
        return self.put(np.full(int(np.prod(shape)) * np.dtype(dtype).itemsize, 0xFF, np.uint8))

    @property
    def bytes(self) -> Array:
        """The arena, laid out when it is first asked for."""
        if self._bytes is None:
            self._bytes = np.full(self._size + 64, 0xFF, np.uint8)
            self._bytes[: self._parts[0][0] if self._parts else 0] = 0
            for offset, array in self._parts:
                self._bytes[offset : offset + array.size] = array
        return self._bytes

    def get(self, offset: int, *shape: int, dtype: Any = np.float32) -> Array:
        """A copy of what stands at an offset."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self.bytes[offset : offset + size].view(dtype).reshape(shape).copy()


def new_work() -> Arena:
    return Arena(WORK_HEAD)


def new_table(*, scratch: int = 0, lists: tuple[list[int], ...] = (), **numbers: int) -> Array:
    """A pass's table: ``lists`` stand behind its head one after the other, ``numbers`` are (index as text: number)."""
    table = np.zeros(TABLE_HEAD, np.int64)
    table[SCRATCH], table[SCRATCH_STRIDE] = scratch, 0
    table[NUM_ROWS], table[ROW_STEP] = MANY, 1
    for index, number in numbers.items():
        table[int(index)] = number
    return np.concatenate([table, *(np.array(part, np.int64) for part in lists)])


@functools.cache
def made(make: Callable[..., Any], *constants: int) -> Any:
    """The kernel ``make(*constants)``, made once: each making reads it from the disk and links it anew."""
    return make(*constants)


MANY = 1 << 20
"""More rows than any line has chunks."""

NO_CACHE = np.zeros(64, np.uint8)


def run_line(
    kernel: Any,
    columns: Any,
    num_chunks: int,
    *,
    weights: Arena,
    work: Arena,
    table: Array,
    cache: Array = NO_CACHE,
    **values: int,
) -> None:
    """Run all chunks of one line whose fields are ``values``."""
    assert set(values) == set(columns._fields), set(values) ^ set(columns._fields)
    program = np.zeros((1, FIELDS), np.int64)
    for name, number in values.items():
        program[0, getattr(columns, name)] = number
    for chunk in range(num_chunks):
        kernel(chunk, 0, 0, program, table, weights.bytes, cache, work.bytes)
