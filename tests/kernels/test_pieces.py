"""Pieces of kernels wait for a kernel to be compiled, and say so where Python calls them."""

from __future__ import annotations

import numba
import pytest

from kvist.kernels import jit

if jit.IS_JIT_OFF:
    pytest.skip("pieces are plain functions where JIT is off", allow_module_level=True)


@jit.inline
def doubled(x):
    return x + x


@jit.called
def fourfold(x):
    return doubled(x) + doubled(x)


def test_a_kernel_has_its_pieces() -> None:
    @jit.kernel(numba.types.int64(numba.types.int64))
    def eightfold(x):
        return fourfold(x) + fourfold(x)

    assert eightfold(3) == 24


@pytest.mark.parametrize("piece", [doubled, fourfold])
def test_python_is_refused(piece) -> None:
    with pytest.raises(TypeError):
        piece(3)
