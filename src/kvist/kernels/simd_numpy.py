"""The NumPy twin of ``simd_llvm``: the same names, the same bits, one array ``[rows, lanes]`` for a tile.

Used when JIT is off (``NUMBA_DISABLE_JIT=1``), so that kernels can be stepped through, covered and bounds-checked as
plain Python: a load beyond the memory is an AssertionError here.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from kvist.kernels.layout import KEY_LEVELS, VALUE_LEVELS
from kvist.kernels.static import Static

__all__ = [
    "absolute",
    "add",
    "add_i32",
    "atomic_load",
    "begin_nibbles",
    "bf16_above",
    "bf16_even",
    "bf16_odd",
    "bf16_of",
    "bf16_to_f32",
    "butterfly",
    "byte_product",
    "call_kernel",
    "div",
    "dot2",
    "dot4",
    "dot4_nibbles",
    "dot4_offset",
    "end_nibbles",
    "f32_to_bf16",
    "fetch_add",
    "first_lane",
    "fma",
    "get_f32",
    "get_i8",
    "get_i32",
    "get_i64",
    "get_u16",
    "half_to_f32",
    "hide",
    "high_halves",
    "high_nibbles",
    "keep_lanes",
    "key_levels",
    "load_f32",
    "load_i8",
    "load_i32",
    "load_rows_f32",
    "load_u16",
    "low_halves",
    "low_nibbles",
    "max_lanes",
    "maximum",
    "minimum",
    "mul",
    "mul_i32",
    "narrow_i8",
    "nearest_key_levels",
    "nearest_value_levels",
    "offset_sums",
    "pause",
    "power_of_two",
    "prefetch",
    "put_f32",
    "put_i8",
    "put_i32",
    "put_i64",
    "put_u16",
    "rint",
    "row",
    "settle",
    "splat_f32",
    "splat_i32",
    "splat_rows_f32",
    "splat_rows_i32",
    "square_root",
    "static",
    "store",
    "store_apart",
    "store_rows",
    "sub",
    "sum_four",
    "sum_lanes",
    "sum_lanes_i32",
    "times_power",
    "to_f32",
    "to_i32",
    "value",
    "value_levels",
    "yield_core",
    "zero_f32",
    "zero_i32",
]

Array = Any


def static(number: int) -> Static:
    return Static(number)


def value(number: Static) -> int:
    return number.number


def _bytes(memory: Array, offset: int, count: int, dtype: Any) -> Array:
    size = count * np.dtype(dtype).itemsize
    assert 0 <= offset and offset + size <= memory.size, (offset, size, memory.size)
    return memory[offset : offset + size].view(np.uint8).view(dtype)


def _load(memory: Array, offset: int, lanes: Any, dtype: Any) -> Array:
    return _bytes(memory, offset, int(lanes.__index__()), dtype).reshape(1, -1).copy()


def load_f32(memory: Array, offset: int, lanes: Any) -> Array:
    return _load(memory, offset, lanes, np.float32)


def load_i32(memory: Array, offset: int, lanes: Any) -> Array:
    return _load(memory, offset, lanes, np.int32)


def load_u16(memory: Array, offset: int, lanes: Any) -> Array:
    return _load(memory, offset, lanes, np.uint16)


def load_i8(memory: Array, offset: int, lanes: Any) -> Array:
    return _load(memory, offset, lanes, np.int8)


def load_rows_f32(memory: Array, offset: int, stride: int, rows: Any, lanes: Any) -> Array:
    return np.concatenate([load_f32(memory, offset + r * stride, lanes) for r in range(rows.__index__())])


def _splat_rows(memory: Array, offset: int, stride: int, rows: Any, lanes: Any, dtype: Any) -> Array:
    column = np.concatenate([_bytes(memory, offset + r * stride, 1, dtype) for r in range(rows.__index__())])
    return np.repeat(column[:, None], lanes.__index__(), axis=1)


def splat_rows_f32(memory: Array, offset: int, stride: int, rows: Any, lanes: Any) -> Array:
    return _splat_rows(memory, offset, stride, rows, lanes, np.float32)


def splat_rows_i32(memory: Array, offset: int, stride: int, rows: Any, lanes: Any) -> Array:
    return _splat_rows(memory, offset, stride, rows, lanes, np.int32)


def store(memory: Array, offset: int, vector: Array) -> None:
    store_rows(memory, offset, 0, vector)


def store_apart(memory: Array, offset: int, vector: Array) -> None:
    (line,) = vector
    _bytes(memory, offset, 2 * line.size - 1, line.dtype)[::2] = line


def store_rows(memory: Array, offset: int, stride: int, tile: Array) -> None:
    for r, line in enumerate(tile):
        _bytes(memory, offset + r * stride, line.size, line.dtype)[:] = line


def get_f32(memory: Array, offset: int) -> Any:
    return _bytes(memory, offset, 1, np.float32)[0]


def put_f32(memory: Array, offset: int, number: Any) -> None:
    _bytes(memory, offset, 1, np.float32)[0] = number


def get_i32(memory: Array, offset: int) -> Any:
    return _bytes(memory, offset, 1, np.int32)[0]


def put_i32(memory: Array, offset: int, number: Any) -> None:
    _bytes(memory, offset, 1, np.int32)[0] = number


def get_i64(memory: Array, offset: int) -> Any:
    return _bytes(memory, offset, 1, np.int64)[0]


def put_i64(memory: Array, offset: int, number: Any) -> None:
    _bytes(memory, offset, 1, np.int64)[0] = number


def get_i8(memory: Array, offset: int) -> Any:
    return _bytes(memory, offset, 1, np.int8)[0]


def put_i8(memory: Array, offset: int, number: Any) -> None:
    _bytes(memory, offset, 1, np.int8)[0] = number


def get_u16(memory: Array, offset: int) -> Any:
    return _bytes(memory, offset, 1, np.uint16)[0]


def put_u16(memory: Array, offset: int, number: Any) -> None:
    _bytes(memory, offset, 1, np.uint16)[0] = number


def prefetch(memory: Array, offset: int) -> None:
    """Nothing to do: a hint changes no result."""


def zero_f32(rows: Any, lanes: Any) -> Array:
    return np.zeros((rows.__index__(), lanes.__index__()), np.float32)


def zero_i32(rows: Any, lanes: Any) -> Array:
    return np.zeros((rows.__index__(), lanes.__index__()), np.int32)


def splat_f32(number: Any, lanes: Any) -> Array:
    return np.full((1, lanes.__index__()), number, np.float32)


def add(a: Array, b: Array) -> Array:
    return a + b


def sub(a: Array, b: Array) -> Array:
    return a - b


def mul(a: Array, b: Array) -> Array:
    return a * b


def div(a: Array, b: Array) -> Array:
    return a / b


def add_i32(a: Array, b: Array) -> Array:
    return a + b


def mul_i32(a: Array, b: Array) -> Array:
    return a * b


def splat_i32(number: Any, lanes: Any) -> Array:
    return np.full((1, lanes.__index__()), number, np.int32)


def fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c with one rounding: product in f64, exact; sum rounded to odd, then to f32 (Boldo, Melquiond 2008)."""
    product = a.astype(np.float64) * b.astype(np.float64)
    addend = c.astype(np.float64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    bits = total.view(np.int64)
    is_inexact = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
    toward_zero = (error < 0) == (total > 0)
    odd = np.where(is_inexact, np.where(toward_zero, bits - 1, bits + 1), bits)
    return odd.view(np.float64).astype(np.float32)


def maximum(a: Array, b: Array) -> Array:
    return np.where(a > b, a, b)


def minimum(a: Array, b: Array) -> Array:
    return np.where(a < b, a, b)


def absolute(a: Array) -> Array:
    return np.abs(a)


def square_root(a: Array) -> Array:
    return np.sqrt(a)


def rint(a: Array) -> Array:
    return np.rint(a)


def to_f32(a: Array) -> Array:
    return a.astype(np.float32)


def to_i32(a: Array) -> Array:
    return a.astype(np.int32)


def narrow_i8(a: Array) -> Array:
    return a.astype(np.int8)


def half_to_f32(a: Array) -> Array:
    return a.view(np.float16).astype(np.float32)


def bf16_to_f32(a: Array) -> Array:
    return (a.astype(np.uint32) << 16).view(np.float32)


def bf16_even(a: Array) -> Array:
    return (a << 16).view(np.float32)


def bf16_odd(a: Array) -> Array:
    return (a & -65536).view(np.float32)


def f32_to_bf16(a: Array) -> Array:
    bits = a.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(a), (bits >> 16) | 64, rounded).astype(np.uint16)


def bf16_of(a: Array) -> Array:
    return f32_to_bf16(a)


def bf16_above(a: Array) -> Array:
    return ((a.view(np.uint32) + np.uint32(0xFFFF)) >> 16).astype(np.uint16)


def power_of_two(a: Array) -> Array:
    return ((a + 127) << 23).astype(np.int32).view(np.float32)


def times_power(a: Array, raised: Array) -> Array:
    return (a.view(np.int32) + (raised.view(np.int32) << 23)).view(np.float32)


def byte_product(a: Array, b: Array) -> Array:
    return np.rint(a.astype(np.float64) * b.astype(np.float64)).astype(np.uint8).view(np.int8)


def keep_lanes(tile: Array, first: int, low: int, high: int, other: Any) -> Array:
    lanes = first + np.arange(tile.shape[1])
    return np.where((low <= lanes) & (lanes < high), tile, np.float32(other))


def butterfly(vector: Array, distance: Any) -> Array:
    step = distance.__index__()
    if vector.shape[1] % (2 * step):
        return vector
    a, b = np.moveaxis(vector.reshape(-1, 2, step), 1, 0)
    return np.stack([a + b, a - b], axis=1).reshape(vector.shape)


def _tree(vector: Array, combine: Any) -> Any:
    line = vector[0]
    while line.size > 1:
        line = combine(line[: line.size // 2], line[line.size // 2 :])
    return line[0]


def sum_lanes(vector: Array) -> Any:
    return _tree(vector, np.add)


def sum_four(a: Array, b: Array, c: Array, d: Array) -> Array:
    lines = np.stack([a, b, c, d], axis=1)
    while lines.shape[-1] > 1:
        low, high = np.split(lines, 2, axis=-1)
        lines = low + high
    return lines[..., 0]


def sum_lanes_i32(vector: Array) -> Any:
    return _tree(vector, np.add)


def max_lanes(vector: Array) -> Any:
    return _tree(vector, maximum)


def first_lane(vector: Array) -> Any:
    return vector[0, 0]


def row(tile: Array, number: Any) -> Array:
    index = number.__index__()
    return tile[index : index + 1]


def low_nibbles(a: Array) -> Array:
    return a & 0x0F0F0F0F


def high_nibbles(a: Array) -> Array:
    return (a >> 4) & 0x0F0F0F0F


def _nearest(a: Array, levels: tuple[int, ...]) -> Array:
    bounds = np.array([(low + high) / 2 for low, high in pairwise(levels)], np.float32)
    return np.add.reduce(a[..., None] >= bounds, axis=-1, dtype=np.int32)


def nearest_key_levels(a: Array) -> Array:
    return _nearest(a, KEY_LEVELS)


def nearest_value_levels(a: Array) -> Array:
    return _nearest(a, VALUE_LEVELS)


def value_levels(a: Array) -> Array:
    return np.array(VALUE_LEVELS, np.int8)[a.view(np.uint8)].view(np.int32)


def key_levels(a: Array, bits: Array, number: Any) -> Array:
    codes = a.view(np.uint8) + 16 * (bits.view(np.uint8) >> number.__index__() & 1)
    return (np.array(KEY_LEVELS) + 128).astype(np.uint8)[codes].view(np.int32)


def dot4(acc: Array, unsigned: Array, signed: Array) -> Array:
    rows = max(acc.shape[0], unsigned.shape[0], signed.shape[0])
    u = np.ascontiguousarray(unsigned).view(np.uint8).reshape(unsigned.shape[0], -1, 4).astype(np.int32)
    s = np.ascontiguousarray(signed).view(np.int8).reshape(signed.shape[0], -1, 4).astype(np.int32)
    return np.broadcast_to(acc, (rows, acc.shape[1])) + np.add.reduce(u * s, axis=2, dtype=np.int32)


def offset_sums(sums: Array) -> Array:
    return sums * np.int32(-128)


dot4_offset = dot4


def begin_nibbles(start: Array) -> Array:
    return start


dot4_nibbles = dot4


def end_nibbles(start: Array, sums: Array) -> Array:
    return sums


def settle(a: Array) -> Array:
    return a


hide = settle


def high_halves(a: Array) -> Array:
    return a & np.int32(-65536)


def low_halves(a: Array) -> Array:
    return a & np.int32(65535)


def dot2(acc: Array, a: Array, b: Array) -> Array:
    with np.errstate(all="ignore"):
        for half in (bf16_odd, bf16_even):
            acc = acc + half(a) * half(b)
    return acc


def fetch_add(counters: Array, index: int, number: Any) -> int:
    before = int(counters[index])
    counters[index] += number
    return before


def atomic_load(counters: Array, index: int) -> int:
    return int(counters[index])


def call_kernel(kernels: Any, number: int, *arguments: Any) -> None:
    kernels[number](*arguments)


def pause() -> None:
    """Nothing waits when JIT is off: one thread runs every chunk."""


def yield_core() -> None:
    """See ``pause``."""
