"""Arenas are zeroed and begin at a cache line, whatever their size."""

from __future__ import annotations

import pytest

from kvist.kernels.arena import LINE_BYTES, new_arena


@pytest.mark.parametrize("size", [1, 63, 64, 1000, 1 << 22])
def test_an_arena_begins_at_a_cache_line(size: int) -> None:
    for _ in range(4):
        arena = new_arena(size)
        assert arena.ctypes.data % LINE_BYTES == 0
        assert arena.size == arena.nbytes == size
        assert arena.flags.c_contiguous
        assert not arena.any()
