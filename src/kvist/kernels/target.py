"""The instruction-set choice: the one place where kernels differ by processor. Each choice gives the same bits.

Numba compiles for ``NUMBA_CPU_NAME`` / ``NUMBA_CPU_FEATURES`` where they are set, else for the host; the same is
followed here. ``tile_rows`` differs because AVX-512 has 32 registers of 16 lanes and AVX2 has 16 of 8.
"""

from __future__ import annotations

import functools
import platform
import sys
from dataclasses import dataclass

from llvmlite import binding, ir
from numba.core import cgutils, config

from kvist.errors import UnsupportedError

_I16, _I32 = ir.IntType(16), ir.IntType(32)
_AVX2_NAMES = ("haswell", "broadwell", "skylake", "znver1", "znver2", "znver3", "x86-64-v3", "alderlake")
_OLD_NAMES = ("generic", "x86-64", "x86-64-v2")
_FLOOR = ("avx2", "fma", "f16c")


@dataclass(frozen=True)
class Target:
    """What kernels are compiled for: ``name`` is avx512vnni, avx512, avx2, neon or generic."""

    name: str
    tile_rows: int
    query_rows: int


@functools.cache
def features() -> frozenset[str]:
    """The features that Numba compiles for, by LLVM's names."""
    if config.CPU_FEATURES is not None:
        listed = {f[1:] for f in str(config.CPU_FEATURES).split(",") if f.startswith("+")}
        if config.CPU_NAME in _AVX2_NAMES:
            listed |= set(_FLOOR)
        return frozenset(listed)
    if config.CPU_NAME == "generic":
        return frozenset()
    return frozenset(name for name, is_on in binding.get_host_cpu_features().items() if is_on)


@functools.cache
def current() -> Target:
    """The target of this process."""
    found = features()
    if {"avx512vnni", "avx512bw", "avx512vl"} <= found:
        return Target("avx512vnni", tile_rows=8, query_rows=6)
    if {"avx512f", "avx512bw"} <= found:
        return Target("avx512", tile_rows=8, query_rows=6)
    if {"avx2", "fma"} <= found:
        return Target("avx2", tile_rows=4, query_rows=3)
    if platform.machine().lower() in ("aarch64", "arm64"):
        return Target("neon", tile_rows=4, query_rows=3)
    return Target("generic", tile_rows=4, query_rows=3)


def check_supported() -> None:
    """Raise UnsupportedError where this processor, or the one that Numba is told of, is older than kvist's floor."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return
    host = binding.get_host_cpu_features()
    missing = [name for name in _FLOOR if not host.get(name)]
    if missing:
        raise UnsupportedError(
            f"this processor lacks {', '.join(missing)}; kvist needs AVX2 with FMA and F16C (x86, 2013 on) or "
            "NEON (64-bit Arm)"
        )
    if config.CPU_NAME in _OLD_NAMES and not features().issuperset(_FLOOR):
        raise UnsupportedError(
            f"NUMBA_CPU_NAME={config.CPU_NAME} says that there is no AVX2, FMA and F16C, which kvist needs; unset it, "
            "or name a processor that has them, such as haswell"
        )


def _call(builder, name, result, args):
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, [a.type for a in args]), name)
    return builder.call(function, args)


def _all(vector, number):
    return ir.Constant(vector, [number] * vector.count)


def _halves(builder, vector):
    half = vector.type.count // 2
    undefined, pick = ir.Constant(vector.type, ir.Undefined), ir.VectorType(_I32, half)
    return [builder.shuffle_vector(vector, undefined, ir.Constant(pick, list(range(n, n + half)))) for n in (0, half)]


def _joined(builder, low, high):
    count = 2 * low.type.count
    return builder.shuffle_vector(low, high, ir.Constant(ir.VectorType(_I32, count), list(range(count))))


def dot4(builder, acc, unsigned, signed):
    """acc + dot of four u8 with four s8 in each of 16 int32 lanes."""
    name = current().name
    if name == "avx512vnni":
        return _vpdpbusd(builder, acc, unsigned, signed)
    if name == "avx2":
        parts = [_halves(builder, v) for v in (acc, unsigned, signed)]
        return _joined(builder, *[_dot4_words(builder, *part) for part in zip(*parts, strict=True)])
    return _dot4_generic(builder, acc, unsigned, signed)


def dot4_nibbles(builder, acc, unsigned, signed):
    """The same where the unsigned bytes are below 16: 4 * 15 * 127 fits the saturating byte multiply."""
    if current().name != "avx2":
        return dot4(builder, acc, unsigned, signed)
    parts = [_halves(builder, v) for v in (acc, unsigned, signed)]
    return _joined(builder, *[_dot4_bytes(builder, *part) for part in zip(*parts, strict=True)])


def _vpdpbusd(builder, acc, unsigned, signed):
    as_bytes = ir.VectorType(ir.IntType(8), 64)
    args = [acc, builder.bitcast(unsigned, as_bytes), builder.bitcast(signed, as_bytes)]
    return _call(builder, "llvm.x86.avx512.vpdpbusd.512", acc.type, args)


def _dot4_bytes(builder, acc, unsigned, signed):
    as_bytes, words = ir.VectorType(ir.IntType(8), 32), ir.VectorType(_I16, 16)
    pairs = _call(
        builder,
        "llvm.x86.avx2.pmadd.ub.sw",
        words,
        [builder.bitcast(unsigned, as_bytes), builder.bitcast(signed, as_bytes)],
    )
    return builder.add(acc, _call(builder, "llvm.x86.avx2.pmadd.wd", acc.type, [pairs, _all(words, 1)]))


def _dot4_words(builder, acc, unsigned, signed):
    """Even and odd bytes apart as 16-bit words, whose products cannot saturate."""
    words = ir.VectorType(_I16, 16)
    u, s = builder.bitcast(unsigned, words), builder.bitcast(signed, words)
    eight = _all(words, 8)
    even = [builder.and_(u, _all(words, 0xFF)), builder.ashr(builder.shl(s, eight), eight)]
    odd = [builder.lshr(u, eight), builder.ashr(s, eight)]
    acc = builder.add(acc, _call(builder, "llvm.x86.avx2.pmadd.wd", acc.type, even))
    return builder.add(acc, _call(builder, "llvm.x86.avx2.pmadd.wd", acc.type, odd))


def _dot4_generic(builder, acc, unsigned, signed):
    wide = acc.type
    for byte in range(4):
        u = builder.and_(builder.lshr(unsigned, _all(wide, 8 * byte)), _all(wide, 0xFF))
        s = builder.ashr(builder.shl(signed, _all(wide, 24 - 8 * byte)), _all(wide, 24))
        acc = builder.add(acc, builder.mul(u, s))
    return acc


def pause(context, builder):
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        _call(builder, "llvm.x86.sse2.pause", ir.VoidType(), [])
    elif machine in ("aarch64", "arm64"):
        _call(builder, "llvm.aarch64.hint", ir.VoidType(), [_I32(1)])
    return context.get_dummy_value()


def yield_core(context, builder):
    if sys.platform != "win32":
        _call(builder, "sched_yield", _I32, [])
    return context.get_dummy_value()
