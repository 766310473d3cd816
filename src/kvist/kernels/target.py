"""The instruction-set choice: the one place where kernels differ by processor. Each choice gives the same bits.

Numba compiles for ``NUMBA_CPU_NAME`` / ``NUMBA_CPU_FEATURES`` where they are set, else for the host; the same is
followed here. Tiles differ because AVX-512 has 32 registers of 16 lanes and AVX2 has 16 of 8.
"""

from __future__ import annotations

import functools
import platform
import sys
from dataclasses import dataclass, replace

from llvmlite import binding, ir
from numba.core import cgutils, config

from kvist.errors import UnsupportedError

_I8, _I16, _I32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
_AVX2_NAMES = ("haswell", "broadwell", "skylake", "znver1", "znver2", "znver3", "x86-64-v3", "alderlake")
_OLD_NAMES = ("generic", "x86-64", "x86-64-v2")
_FLOOR = ("avx2", "fma", "f16c")
_SIXTEEN = ("avx2", "avxvnni")
"""Those with 16 vector registers, of 8 lanes."""
_DOT_LANES = {"avx512vnni": 16, "avxvnni": 8}
"""Where there is an instruction for dots of bytes: of how many 32-bit lanes."""
_WORDS = {"avx2": 8, "avx512": 16}
"""Where there is no instruction for dots of bytes: how many 32-bit lanes of 16-bit words are multiplied at a time."""


@dataclass(frozen=True)
class Target:
    """What kernels are compiled for: ``name`` is avx512vnni, avx512, avxvnni, avx2, neon or generic.

    ``tile_rows`` are most rows of a tile of one panel (``float_rows`` of floating-point weights), ``pair_rows`` of one
    of two (0: there are none). 8-bit weights are multiplied two panels at a time from ``pairs_from`` rows on, 4-bit
    ones, which have to be widened to bytes for it, from ``widened_from`` (0: never). ``query_rows`` are most queries of
    a group in attention, ``sums`` most vectors of 16 sums that there are registers for, and ``value_dims`` dims of
    values that are added up together (0: all of a head's). ``bytes_ahead``: how far ahead a pass of one or two rows
    asks for quantised weights, where the processor's own prefetcher does worse (0: it does better).
    ``has_two_sums``: a tile of 4-bit weights adds a group up in two halves, where one would wait for the instruction's
    latency. ``few_rows``: passes of fewer rows run the program that is divided for few.
    """

    name: str
    tile_rows: int
    pair_rows: int
    query_rows: int
    sums: int = 8
    value_dims: int = 0
    float_rows: int = 4
    pairs_from: int = 0
    widened_from: int = 0
    bytes_ahead: int = 0
    has_two_sums: bool = False
    few_rows: int = 22


_VNNI = Target("avx512vnni", tile_rows=6, pair_rows=5, query_rows=6, sums=24)
_ZEN4 = _VNNI
_ZEN5 = replace(_VNNI, pairs_from=14, bytes_ahead=4096, few_rows=65)
_ICE_LAKE = replace(_VNNI, pairs_from=13, widened_from=13, has_two_sums=True)
_SAPPHIRE_RAPIDS = replace(_ICE_LAKE, bytes_ahead=4096)
_SKYLAKE = Target("avx512", tile_rows=4, pair_rows=5, query_rows=6, sums=24)
_AVX2 = Target("avx2", tile_rows=4, pair_rows=0, query_rows=4, sums=4, value_dims=16, float_rows=6)
_ZEN3 = replace(_AVX2, bytes_ahead=2048)
_OTHERS = Target("generic", tile_rows=4, pair_rows=0, query_rows=3)
"""By the first processor that each was measured on, or meant for; later ones of the maker take it, too."""


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


def _processor() -> str:
    """The processor that Numba compiles for, by LLVM's name."""
    return str(config.CPU_NAME or binding.get_host_cpu_name())


def _is_zen() -> bool:
    """Whether it is one of AMD's of today."""
    return _processor().startswith("znver")


@functools.cache
def current() -> Target:
    """The target of this process."""
    found = features()
    if {"avx512vnni", "avx512bw", "avx512vl"} <= found:
        if _is_zen():
            return _ZEN4 if _processor() == "znver4" else _ZEN5
        return _SAPPHIRE_RAPIDS if "avx512bf16" in found else _ICE_LAKE
    if {"avx512f", "avx512bw"} <= found:
        return _SKYLAKE
    if {"avx2", "fma"} <= found:
        return replace(_ZEN3 if _is_zen() else _AVX2, name="avxvnni" if "avxvnni" in found else "avx2")
    if platform.machine().lower() in ("aarch64", "arm64"):
        return replace(_OTHERS, name="neon")
    return _OTHERS


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


def _in_parts(builder, lanes, emit, *vectors):
    """``emit`` over vectors of 32-bit lanes, ``lanes`` of them at a time."""
    count = vectors[0].type.count
    if count <= lanes:
        return emit(builder, *vectors)
    joined = ir.Constant(vectors[0].type, ir.Undefined)
    for at in range(0, count, lanes):
        found = emit(builder, *[_part(builder, vector, at, lanes) for vector in vectors])
        name = f"llvm.vector.insert.{_suffix(joined.type)}.{_suffix(found.type)}"
        joined = _call(builder, name, joined.type, [joined, found, ir.IntType(64)(at)])
    return joined


def _part(builder, vector, at, lanes):
    part = ir.VectorType(vector.type.element, lanes)
    name = f"llvm.vector.extract.{_suffix(part)}.{_suffix(vector.type)}"
    return _call(builder, name, part, [vector, ir.IntType(64)(at)])


def _suffix(vector):
    return f"v{vector.count}" + ("f32" if isinstance(vector.element, ir.FloatType) else "i32")


def dot4(builder, acc, unsigned, signed):
    """acc + dot of four u8 with four s8 in each int32 lane, of which there are 8, 16, 32 or 64."""
    name = current().name
    if name in _DOT_LANES:
        return _in_parts(builder, _DOT_LANES[name], _vpdpbusd, acc, unsigned, signed)
    if name in _WORDS:
        return _in_parts(builder, _WORDS[name], _dot4_words, acc, unsigned, signed)
    return _dot4_generic(builder, acc, unsigned, signed)


def offset_sums(builder, sums):
    """What dots of bytes stored as their number + 128 start at, by the sums of the signed bytes beside them."""
    return _all(sums.type, 0) if current().name == "avx2" else builder.mul(sums, _all(sums.type, -128))


def dot4_offset(builder, acc, stored, signed):
    """acc + dot of four bytes stored as their number + 128 with four s8, none of which is -128.

    For sums that start at ``offset_sums``. The byte multiply wants one side unsigned: the number's size, and its sign
    is given to the other; a pair's sum is 2 * 128 * 127 at most.
    """
    if current().name != "avx2":
        return dot4(builder, acc, stored, signed)
    return _in_parts(builder, 8, _dot4_sizes, acc, stored, signed)


def begin_nibbles(builder, start):
    """What ``dot4_nibbles`` adds to, where sums begin at ``start``: sums of pairs as 16-bit words, or the start."""
    return _all(start.type, 0) if current().name in _WORDS else start


def dot4_nibbles(builder, sums, unsigned, signed):
    """``sums`` + dot of four unsigned bytes below 16 with four s8.

    Up to eight of them fit in 16-bit words, 8 * 2 * 15 * 128 at most, and a pair's sum in the saturating byte multiply.
    """
    lanes = _WORDS.get(current().name)
    if lanes is None:
        return dot4(builder, sums, unsigned, signed)
    return _in_parts(builder, lanes, _add_pairs, sums, unsigned, signed)


def end_nibbles(builder, start, sums):
    """``start`` + the sums of at most eight ``dot4_nibbles``."""
    lanes = _WORDS.get(current().name)
    return sums if lanes is None else _in_parts(builder, lanes, _add_words, start, sums)


def settle(builder, vector):
    """The same vector, computed at this place: with 16 registers LLVM's own order keeps half of a tile on the stack."""
    return hide(builder, vector) if current().name in _SIXTEEN else vector


def hide(builder, vector):
    """The same vector, of which LLVM knows nothing: what is computed with it is computed each time."""
    name = current().name
    if name not in _SIXTEEN and not name.startswith("avx512"):
        return vector
    return _in_parts(builder, 8 if name in _SIXTEEN else 16, _hide, vector)


def _hide(builder, vector):
    return builder.asm(ir.FunctionType(vector.type, [vector.type]), "", "=v,0", [vector], side_effect=True)


def dot2(builder, acc, pairs, others):
    """acc (f32) + the products of the bf16 pairs in each 32-bit lane: the high halves', then the low ones'.

    A product of two bf16 numbers is exact in f32, so that the instruction of AVX-512 and two fmas give the same bits;
    only numbers below the smallest normal one, which the instruction takes for 0, differ (Intel's Software Developer's
    Manual, VDPBF16PS).
    """
    if has_dot2() and acc.type.count % 16 == 0:
        return _in_parts(builder, 16, _dpbf16ps, acc, pairs, others)
    name = f"llvm.fma.v{acc.type.count}f32"
    for half in (_high_half, _low_half):
        acc = _call(builder, name, acc.type, [half(builder, pairs, acc.type), half(builder, others, acc.type), acc])
    return acc


class _Bfloat(ir.types.Type):
    """LLVM's 16-bit brain floating point, which llvmlite has no type for."""

    intrinsic_name = "bf16"

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bfloat)

    def __hash__(self) -> int:
        return hash(_Bfloat)


@functools.cache
def has_dot2() -> bool:
    """Whether there is an instruction for it that is faster than two fmas, and an LLVM that knows it by these types.

    Intel's processors do two fmas in the time of one, AMD's don't.
    """
    return _is_zen() and {"avx512bf16", "avx512f"} <= features() and binding.llvm_version_info[0] >= 17


def _high_half(builder, pairs, floats):
    return builder.bitcast(builder.and_(pairs, _all(pairs.type, -65536)), floats)


def _low_half(builder, pairs, floats):
    return builder.bitcast(builder.shl(pairs, _all(pairs.type, 16)), floats)


def _dpbf16ps(builder, acc, pairs, others):
    numbers = ir.VectorType(_Bfloat(), 32)
    args = [acc, builder.bitcast(pairs, numbers), builder.bitcast(others, numbers)]
    return _call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", acc.type, args)


def look_up(builder, indices, table):
    """Each byte of an i32 vector, below 16, as the byte of ``table`` (16 numbers) that it is the index of."""
    name, wide = current().name, indices.type
    if name in ("avx512vnni", "avx512"):
        return _in_parts(builder, 16, functools.partial(_shuffle_bytes, table=table), indices)
    if name in _SIXTEEN:
        return _in_parts(builder, 8, functools.partial(_shuffle_bytes, table=table), indices)
    as_bytes = ir.VectorType(_I8, 4 * wide.count)
    index, found = builder.bitcast(indices, as_bytes), _all(as_bytes, table[0] & 0xFF)
    for number, entry in enumerate(table[1:], start=1):
        is_it = builder.icmp_unsigned("==", index, _all(as_bytes, number))
        found = builder.select(is_it, _all(as_bytes, entry & 0xFF), found)
    return builder.bitcast(found, wide)


def _shuffle_bytes(builder, indices, table):
    count = 4 * indices.type.count
    name = {64: "llvm.x86.avx512.pshuf.b.512", 32: "llvm.x86.avx2.pshuf.b"}[count]
    as_bytes = ir.VectorType(_I8, count)
    entries = ir.Constant(as_bytes, [entry & 0xFF for entry in table] * (count // 16))
    return builder.bitcast(_call(builder, name, as_bytes, [entries, builder.bitcast(indices, as_bytes)]), indices.type)


def _vpdpbusd(builder, acc, unsigned, signed):
    count = 4 * acc.type.count
    as_bytes = ir.VectorType(_I8, count)
    args = [acc, builder.bitcast(unsigned, as_bytes), builder.bitcast(signed, as_bytes)]
    return _call(builder, f"llvm.x86.avx512.vpdpbusd.{8 * count}", acc.type, args)


def _multiply_bytes(builder, unsigned, signed):
    """The sums of pairs of products of u8 and s8, 16 bits each: where they don't fit, they saturate."""
    count = 4 * unsigned.type.count
    as_bytes, words = ir.VectorType(_I8, count), ir.VectorType(_I16, count // 2)
    name = {64: "llvm.x86.avx512.pmaddubs.w.512", 32: "llvm.x86.avx2.pmadd.ub.sw"}[count]
    return _call(builder, name, words, [builder.bitcast(unsigned, as_bytes), builder.bitcast(signed, as_bytes)])


def _multiply_words(builder, a, b):
    """The sums of pairs of products of 16-bit words, 32 bits each."""
    count = a.type.count
    name = {32: "llvm.x86.avx512.pmaddw.d.512", 16: "llvm.x86.avx2.pmadd.wd"}[count]
    return _call(builder, name, ir.VectorType(_I32, count // 2), [a, b])


def _dot4_sizes(builder, acc, stored, signed):
    as_bytes = ir.VectorType(_I8, 4 * acc.type.count)
    number = builder.xor(builder.bitcast(stored, as_bytes), _all(as_bytes, 0x80))
    is_negative = builder.icmp_signed("<", number, _all(as_bytes, 0))
    size = builder.select(is_negative, builder.neg(number), number)
    other = _call(builder, "llvm.x86.avx2.psign.b", as_bytes, [builder.bitcast(signed, as_bytes), number])
    words = _multiply_bytes(builder, builder.bitcast(size, acc.type), builder.bitcast(other, acc.type))
    return builder.add(acc, _multiply_words(builder, words, _all(words.type, 1)))


def _add_pairs(builder, sums, unsigned, signed):
    words = ir.VectorType(_I16, 2 * sums.type.count)
    total = builder.add(builder.bitcast(sums, words), _multiply_bytes(builder, unsigned, signed))
    return builder.bitcast(total, sums.type)


def _add_words(builder, start, sums):
    words = ir.VectorType(_I16, 2 * sums.type.count)
    return builder.add(start, _multiply_words(builder, builder.bitcast(sums, words), _all(words, 1)))


def _dot4_words(builder, acc, unsigned, signed):
    """Even and odd bytes apart as 16-bit words, whose products cannot saturate."""
    words = ir.VectorType(_I16, 2 * acc.type.count)
    u, s = builder.bitcast(unsigned, words), builder.bitcast(signed, words)
    eight = _all(words, 8)
    even = [builder.and_(u, _all(words, 0xFF)), builder.ashr(builder.shl(s, eight), eight)]
    odd = [builder.lshr(u, eight), builder.ashr(s, eight)]
    acc = builder.add(acc, _multiply_words(builder, *even))
    return builder.add(acc, _multiply_words(builder, *odd))


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
