"""The SIMD operations that kernels are written in: compiled ones, or their NumPy twins when JIT is off."""

from __future__ import annotations

from kvist.kernels.jit import IS_JIT_OFF

if IS_JIT_OFF:
    from kvist.kernels.simd_numpy import *
else:
    from kvist.kernels.simd_llvm import *
