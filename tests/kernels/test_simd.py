"""Every SIMD operation gives the very bits of its NumPy twin, for numbers of all kinds.

An operation stands as ``ops.NAME`` in functions that are run twice: compiled with ``simd_llvm``, and as plain Python
with ``simd_numpy``. NaNs are compared as NaNs: which of them comes out is not promised.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kvist.kernels import simd_llvm, simd_numpy, target
from kvist.kernels.layout import KEY_LEVELS, VALUE_LEVELS

Array = np.ndarray[Any, Any]
L = 16
SPECIAL = np.array(
    [
        *(0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, 1e-30, -1e30, 1.0000001, 8388608.5, 16777216.0, 16777217.0),
        *(1e-45, -1e-45, 1.1754942e-38, 1.1754944e-38, 3.4028235e38, -3.4028235e38, np.inf, -np.inf, np.nan),
    ],
    np.float32,
)
BITS = st.one_of(
    st.sampled_from(SPECIAL.view(np.uint32).tolist()),
    st.integers(0, 2**32 - 1),
    st.floats(-8, 8, width=32).map(lambda x: int(np.float32(x).view(np.uint32))),
)
INTEGERS = st.one_of(st.sampled_from([0, 1, -1, 127, -128, 2**31 - 1, -(2**31)]), st.integers(-(2**31), 2**31 - 1))


def floats(count: int) -> st.SearchStrategy[Array]:
    return arrays(np.uint32, count, elements=BITS, fill=st.nothing()).map(lambda bits: bits.view(np.float32))


def integers(count: int, low: int = -(2**31), high: int = 2**31 - 1) -> st.SearchStrategy[Array]:
    ends = st.sampled_from([low, high, *(n for n in (0, 1, -1) if low <= n <= high)])
    return arrays(np.int32, count, elements=ends | st.integers(low, high), fill=st.nothing())


class Twins:
    """One function of ``(ops, memory, out)``, compiled and plain."""

    def __init__(self, make: Callable[[ModuleType], Callable[..., Any]]) -> None:
        self.compiled = numba.njit(nogil=True, error_model="numpy")(make(simd_llvm))
        self.plain = make(simd_numpy)

    def check(self, memory: Array, out_bytes: int, kind: Any, *numbers: Any) -> Array:
        """Run both; assert that ``out`` is the same, NaN for NaN; returns it."""
        found = []
        for run in (self.compiled, self.plain):
            out = np.full(out_bytes, 0xA5, np.uint8)
            with np.errstate(all="ignore"):
                run(np.ascontiguousarray(memory).view(np.uint8).copy(), out, *numbers)
            found.append(out)
        mine, twin = (out.view(kind) for out in found)
        same = found[0].view(f"u{np.dtype(kind).itemsize}") == found[1].view(f"u{np.dtype(kind).itemsize}")
        if np.issubdtype(kind, np.floating):
            same |= np.isnan(mine) & np.isnan(twin)
        assert same.all(), (np.flatnonzero(~same) // L, mine[~same], twin[~same])
        return mine


# ---- functions that both backends run: each result goes to the next 64 (or so) bytes of ``out``


def float_arithmetic(ops: ModuleType) -> Callable[..., None]:
    def run(memory, out):
        a, b, c = ops.load_f32(memory, 0, L), ops.load_f32(memory, 64, L), ops.load_f32(memory, 128, L)
        ops.store(out, 0, ops.add(a, b))
        ops.store(out, 64, ops.sub(a, b))
        ops.store(out, 128, ops.mul(a, b))
        ops.store(out, 192, ops.div(a, b))
        ops.store(out, 256, ops.maximum(a, b))
        ops.store(out, 320, ops.minimum(a, b))
        ops.store(out, 384, ops.absolute(a))
        ops.store(out, 448, ops.square_root(a))
        ops.store(out, 512, ops.rint(a))
        ops.store(out, 576, ops.fma(a, b, c))
        ops.put_f32(out, 640, ops.sum_lanes(a))
        ops.put_f32(out, 644, ops.first_lane(a))

    return run


def integer_arithmetic(ops: ModuleType) -> Callable[..., None]:
    def run(memory, out):
        a, b = ops.load_i32(memory, 0, L), ops.load_i32(memory, 64, L)
        ops.store(out, 0, ops.add_i32(a, b))
        ops.store(out, 64, ops.mul_i32(a, b))
        ops.store(out, 128, ops.low_nibbles(a))
        ops.store(out, 192, ops.high_nibbles(a))
        ops.store(out, 256, ops.to_f32(a))
        ops.store(out, 320, ops.bf16_even(a))
        ops.store(out, 384, ops.bf16_odd(a))
        ops.put_i32(out, 448, ops.sum_lanes_i32(a))
        ops.store(out, 452, ops.splat_i32(np.int32(-7), L))

    return run


def to_bf16(ops: ModuleType) -> Callable[..., None]:
    def run(memory, out):
        ops.store(out, 0, ops.f32_to_bf16(ops.load_f32(memory, 0, 64)))
        ops.store_apart(out, 128, ops.f32_to_bf16(ops.load_f32(memory, 0, 64)))

    return run


def from_16_bits(ops: ModuleType) -> Callable[..., None]:
    def run(memory, out):
        for at in range(0, 65536, 64):
            u = ops.load_u16(memory, at * 2, 64)
            ops.store(out, at * 8, ops.half_to_f32(u))
            ops.store(out, at * 8 + 256, ops.bf16_to_f32(u))

    return run


def bounded_conversions(ops: ModuleType) -> Callable[..., None]:
    def run(memory, out):
        ops.store(out, 0, ops.to_i32(ops.load_f32(memory, 0, L)))
        ops.store(out, 64, ops.power_of_two(ops.load_i32(memory, 64, L)))
        small = ops.load_i32(memory, 128, L)
        ops.store(out, 128, ops.narrow_i8(small))
        ops.store(out, 144, ops.load_i8(out, 128, L))
        ops.put_f32(out, 160, ops.max_lanes(ops.to_f32(small)))

    return run


def tiles(ops: ModuleType) -> Callable[..., None]:
    def run(memory, out, stride, first, low, high):
        three = ops.load_rows_f32(memory, 4, stride, 3, L)
        one = ops.load_f32(memory, 0, L)
        ops.store_rows(out, 0, 100, ops.fma(three, one, ops.splat_rows_f32(memory, 8, stride, 3, L)))
        ops.store_rows(out, 300, 64, ops.add(one, three))
        ops.store(out, 500, ops.row(three, 2))
        other = np.float32(-3.0e38)
        ops.store_rows(out, 564, 64, ops.keep_lanes(three, first, low, high, other))
        ops.store_rows(
            out, 756, 64, ops.add_i32(ops.load_i32(memory, 0, L), ops.splat_rows_i32(memory, 12, stride, 3, L))
        )
        ops.store_rows(out, 948, 64, ops.zero_f32(3, L))
        ops.store(out, 1140, ops.splat_f32(ops.get_f32(memory, 3), L))
        ops.store(out, 1204, ops.load_f32(memory, 1, 80))
        ops.store(out, 1524, ops.half_to_f32(ops.load_u16(memory, 5, 1)))
        ops.store_rows(out, 1528, 16, ops.sum_four(three, ops.add(three, one), ops.mul(three, one), three))
        ops.put_f32(out, 1576, ops.sum_lanes(ops.row(three, 1)))

    return run


def scalars(ops: ModuleType) -> Callable[..., None]:
    def run(memory, out, at):
        ops.put_f32(out, at, ops.get_f32(memory, at))
        ops.put_i32(out, at + 4, np.int32(ops.get_i32(memory, at + 4) ^ np.int32(1)))
        ops.put_u16(out, at + 8, ops.get_u16(memory, at + 8))
        ops.put_i8(out, at + 10, ops.get_i8(memory, at + 10))
        ops.prefetch(memory, at)
        ops.put_i32(out, at + 12, np.int32(ops.value(ops.static(5))))

    return run


def byte_dots(ops: ModuleType) -> Callable[..., None]:
    def run(memory, out):
        acc, unsigned, signed = ops.load_i32(memory, 0, L), ops.load_i32(memory, 64, L), ops.load_i32(memory, 128, L)
        ops.store(out, 0, ops.dot4(acc, unsigned, signed))
        nibbles = ops.low_nibbles(unsigned)
        sums = ops.begin_nibbles(acc)
        for _ in range(8):  # as many as 16 bits hold
            sums = ops.dot4_nibbles(sums, nibbles, signed)
        ops.store(out, 64, ops.end_nibbles(acc, sums))
        tile = ops.splat_rows_i32(memory, 128, 4, 3, L)
        ops.store_rows(out, 128, 64, ops.dot4(acc, unsigned, tile))

    return run


def offset_dots(ops: ModuleType) -> Callable[..., None]:
    """Dots of bytes stored as their number + 128; and what is settled or hidden stays as it is."""

    def run(memory, out):
        stored, signed = ops.load_i32(memory, 0, L), ops.load_i32(memory, 64, L)
        start = ops.offset_sums(ops.load_i32(memory, 128, L))
        ops.store(out, 0, ops.dot4_offset(start, stored, signed))
        tile = ops.splat_rows_i32(memory, 64, 4, 3, L)
        begun = ops.offset_sums(ops.splat_rows_i32(memory, 192, 4, 3, L))
        ops.store_rows(out, 64, 64, ops.settle(ops.dot4_offset(begun, ops.hide(stored), tile)))

    return run


def wide_dots(ops: ModuleType) -> Callable[..., None]:
    """Of 8 and of 64 lanes, and bytes that are looked up for them."""

    def run(memory, out):
        acc, unsigned, signed = ops.load_i32(memory, 0, 8), ops.load_i32(memory, 32, 8), ops.load_i32(memory, 64, 8)
        ops.store(out, 0, ops.dot4(acc, unsigned, signed))
        many = ops.dot4(ops.zero_i32(2, 64), ops.splat_rows_i32(memory, 4, 8, 2, 64), ops.load_i32(memory, 16, 64))
        ops.store_rows(out, 32, 256, many)
        nibbles = ops.low_nibbles(ops.load_i32(memory, 0, 64))
        ops.store(out, 544, ops.value_levels(nibbles))
        ops.store(out, 800, ops.key_levels(nibbles, ops.load_i32(memory, 8, 64), 0))
        few = ops.high_nibbles(ops.load_i32(memory, 0, L))
        ops.store(out, 1056, ops.key_levels(few, ops.load_i32(memory, 4, L), 5))
        ops.store(out, 1120, ops.value_levels(ops.high_nibbles(ops.load_i32(memory, 0, 8))))

    return run


def codes(ops: ModuleType) -> Callable[..., None]:
    def run(memory, out):
        x = ops.load_f32(memory, 0, 80)
        ops.store(out, 0, ops.butterfly(ops.butterfly(x, 1), 8))
        ops.store(out, 320, ops.butterfly(x, 16))
        ops.store(out, 640, ops.butterfly(ops.load_f32(memory, 0, 64), 32))
        ops.store(out, 896, ops.bf16_above(ops.absolute(x)))
        ops.store(out, 1056, ops.nearest_key_levels(x))
        ops.store(out, 1376, ops.nearest_value_levels(x))
        ops.put_i64(out, 1696, ops.get_i64(memory, 3))
        share = ops.div(ops.absolute(x), ops.add(ops.absolute(x), ops.splat_f32(np.float32(1), 80)))  # 0 to 1
        ops.store(out, 1704, ops.byte_product(share, ops.splat_f32(np.float32(255), 80)))
        ops.store(
            out,
            1784,
            ops.times_power(
                ops.add(share, ops.splat_f32(np.float32(1), 80)), ops.splat_f32(np.float32(1.5 * 2**23 - 90), 80)
            ),
        )

    return run


def pairs(ops: ModuleType) -> Callable[..., None]:
    def run(memory, out):
        acc, a, b = ops.load_f32(memory, 0, 80), ops.load_i32(memory, 320, 80), ops.load_i32(memory, 640, 80)
        ops.store(out, 0, ops.dot2(acc, a, b))
        both = ops.splat_rows_i32(memory, 320, 8, 3, L)
        ops.store_rows(
            out, 320, 64, ops.dot2(ops.load_rows_f32(memory, 0, 4, 3, L), ops.load_i32(memory, 640, L), both)
        )
        ops.store(
            out, 512, ops.dot2(ops.load_f32(memory, 0, 8), ops.load_i32(memory, 320, 8), ops.load_i32(memory, 640, 8))
        )
        ops.store(out, 544, ops.high_halves(a))
        ops.store(out, 864, ops.low_halves(a))
        ops.store(out, 1184, ops.bf16_of(acc))

    return run


def counters(ops: ModuleType) -> Callable[..., None]:
    def run(memory, out, numbers):
        numbers[1] = ops.fetch_add(numbers, 0, np.int64(3))
        numbers[2] = ops.atomic_load(numbers, 0)

    return run


FLOATS, INTS, BF16, SIXTEEN = Twins(float_arithmetic), Twins(integer_arithmetic), Twins(to_bf16), Twins(from_16_bits)
BOUNDED, TILES, SCALARS, COUNTERS = Twins(bounded_conversions), Twins(tiles), Twins(scalars), Twins(counters)
CODES, PAIRS = Twins(codes), Twins(pairs)
ELSEWHERE = {"call_kernel", "pause", "yield_core"}  # what they do shows in the interpreter's tests alone


def test_every_operation_has_a_twin_and_is_compared_here() -> None:
    assert sorted(simd_llvm.__all__) == sorted(simd_numpy.__all__)
    compared = set(re.findall(r"ops\.(\w+)\(", Path(__file__).read_text(encoding="utf-8")))
    assert compared | ELSEWHERE == set(simd_llvm.__all__)


@given(floats(3 * L))
@example(np.resize(SPECIAL, 3 * L))
def test_float_arithmetic(numbers: Array) -> None:
    FLOATS.check(numbers, 648, np.float32)


def test_each_special_float_with_each() -> None:
    a, b = (side.reshape(-1) for side in np.meshgrid(SPECIAL, SPECIAL))
    size = -(-a.size // L) * L
    a, b = np.resize(a, size), np.resize(b, size)
    for at in range(0, size, L):
        for c in SPECIAL:
            FLOATS.check(np.concatenate([a[at : at + L], b[at : at + L], np.full(L, c)]), 648, np.float32)


def nearest_f32(x: Fraction) -> np.float32:
    """``x`` rounded once, half to even, by integer arithmetic."""
    if x == 0:
        return np.float32(0)
    size = abs(x)
    exponent = max(-126, size.numerator.bit_length() - size.denominator.bit_length() - 1)
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    rounded = round(size / Fraction(2) ** (exponent - 23)) * Fraction(2) ** (exponent - 23)
    nearest = np.inf if rounded >= Fraction(2) ** 128 else float(rounded)
    return np.float32(nearest if x > 0 else -nearest)


@given(floats(3 * L).filter(lambda numbers: bool(np.isfinite(numbers).all())))
def test_fma_rounds_once(numbers: Array) -> None:
    found = FLOATS.check(numbers, 648, np.float32)[9 * L : 10 * L]
    for result, a, b, c in zip(found, *numbers.reshape(3, L).tolist(), strict=True):
        exact = nearest_f32(Fraction(a) * Fraction(b) + Fraction(c))
        assert result == exact, (a, b, c, result, exact)


@given(integers(2 * L))
def test_integer_arithmetic(numbers: Array) -> None:
    INTS.check(numbers, 516, np.int32)


@given(floats(64))
@example(np.resize(SPECIAL, 64))
def test_rounding_to_bf16(numbers: Array) -> None:
    found = BF16.check(numbers, 384, np.uint16)[:64]
    wide = (found.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(np.isnan(wide), np.isnan(numbers))
    assert np.array_equal(np.signbit(wide), np.signbit(numbers))
    finite = np.isfinite(wide)
    error = np.abs(wide[finite].astype(np.float64) - numbers[finite])
    for step in (-1, 1):
        with np.errstate(over="ignore"):
            neighbour = ((found[finite].astype(np.int64) + step).astype(np.uint32) << 16).view(np.float32)
        other = np.abs(neighbour.astype(np.float64) - numbers[finite])
        is_even = found[finite] % 2 == 0
        assert (np.isnan(other) | (error < other) | ((error == other) & is_even)).all()
    assert (np.abs(numbers[np.isinf(wide)]) >= 3.3961776e38).all()  # the largest bf16 and half a step


def test_all_halves_and_all_bf16() -> None:
    SIXTEEN.check(np.arange(65536, dtype=np.uint16), 65536 * 8, np.float32)


ORDINARY = st.floats(2.0**-40, 2.0**40, width=32) | st.floats(-(2.0**40), -(2.0**-40), width=32) | st.just(0.0)


@given(*(arrays(np.float32, count, elements=ORDINARY) for count in (80, 160, 160)))
def test_pairs_of_bf16(acc: Array, a: Array, b: Array) -> None:
    """Numbers below the smallest normal one aside, which the instruction for it takes for 0."""
    halves = [(x.view(np.uint32) >> 16).astype(np.uint16) for x in (a, b)]
    found = PAIRS.check(np.concatenate([acc.view(np.int32), *(x.view(np.int32) for x in halves)]), 1344, np.float32)
    exact = [(x.astype(np.uint32) << 16).view(np.float32).astype(np.float64).reshape(80, 2) for x in halves]
    first = (acc + exact[0][:, 1] * exact[1][:, 1]).astype(np.float32)
    assert np.array_equal(found[:80], (first + exact[0][:, 0] * exact[1][:, 0]).astype(np.float32))


@given(
    arrays(np.float32, L, elements=st.integers(-(2**30), 2**30).map(lambda n: float(np.float32(n)))),
    integers(L, -126, 127),
    integers(L, -128, 127),
)
def test_bounded_conversions(whole: Array, exponents: Array, small: Array) -> None:
    memory = np.concatenate([part.view(np.int32) for part in (whole, exponents, small)])
    found = BOUNDED.check(memory, 164, np.uint8)
    assert np.array_equal(found[64:128].view(np.float32), np.ldexp(1.0, exponents))
    assert np.array_equal(found[144:160].view(np.int8), small)


@given(floats(60), st.integers(16, 48), st.integers(-20, 40), st.integers(-40, 60), st.integers(-40, 60))
def test_tiles(numbers: Array, stride: int, first: int, low: int, high: int) -> None:
    memory = np.resize(numbers, 120)
    found = TILES.check(memory, 1580, np.float32, stride, first, low, high)
    assert np.array_equal(found[-9:-8].view(np.uint32), found[-1:].view(np.uint32)) or np.isnan(found[-1])


@given(floats(8), st.integers(0, 12))
def test_scalars_at_any_byte(numbers: Array, at: int) -> None:
    SCALARS.check(numbers, 32, np.uint8, at)


def test_a_hint_outside_the_memory_is_only_a_hint() -> None:
    ops = simd_llvm

    @numba.njit
    def ask(memory, at):
        ops.prefetch(memory, at)

    for at in (-(1 << 50), -1, 1 << 50):
        ask(np.zeros(1, np.uint8), at)


TARGETS = ["generic"] if target.current().name in ("neon", "generic") else ["generic", "avx2", target.current().name]
if {"avx512f", "avx512bw"} <= target.features():
    TARGETS.append("avx512")
if "avxvnni" in target.features():
    TARGETS.append("avxvnni")
TARGETS = sorted(set(TARGETS))


@pytest.fixture(scope="module", params=TARGETS)
def dots(request) -> Twins:
    """Compiled as for each processor whose instructions this one has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "current", lambda: target.Target(request.param, tile_rows=4, pair_rows=0, query_rows=3))
        twins = Twins(byte_dots)
        twins.check(np.zeros(3 * L, np.int32), 320, np.int32)
    return twins


@pytest.fixture(scope="module", params=TARGETS)
def offset(request) -> Twins:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "current", lambda: target.Target(request.param, tile_rows=4, pair_rows=0, query_rows=3))
        twins = Twins(offset_dots)
        twins.check(np.zeros(3 * L + 4, np.int32), 256, np.int32)
    return twins


@pytest.fixture(scope="module", params=TARGETS)
def wide(request) -> Twins:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "current", lambda: target.Target(request.param, tile_rows=4, pair_rows=0, query_rows=3))
        twins = Twins(wide_dots)
        twins.check(np.zeros(80, np.int32), 1152, np.int32)
    return twins


def sums_of_four(signed: Array) -> Array:
    return np.add.reduce(signed.view(np.int8).reshape(-1, 4), axis=1, dtype=np.int32)


@given(integers(2 * L))
@example(np.repeat(np.array([0, 0x7F7F7F7F], np.int32), L))
@example(np.repeat(np.array([0, -2122219135], np.int32), L))
@example(np.repeat(np.array([-1, -2122219135], np.int32), L))
def test_dot_products_of_bytes_with_an_offset(offset: Twins, numbers: Array) -> None:
    stored, signed = numbers.reshape(2, L).copy()
    as_bytes = signed.view(np.int8)
    as_bytes[as_bytes == -128] = -127
    numbers = np.concatenate((stored, signed, sums_of_four(signed), sums_of_four(signed[:4])))
    found = offset.check(numbers, 256, np.int32)
    q = stored.view(np.uint8).reshape(L, 4).astype(np.int64) - 128
    exact = (q * as_bytes.reshape(L, 4)).sum(axis=1)
    assert np.array_equal(found[:L], exact)
    assert np.array_equal(found[L : 2 * L], (q * as_bytes[:4]).sum(axis=1))


@given(integers(24))
@example(np.repeat(np.array([0, -1, -2139062144], np.int32), 8))
def test_wide_dot_products_and_levels(wide: Twins, numbers: Array) -> None:
    wide.check(np.resize(numbers, 80), 1152, np.int32)


@given(floats(40))
def test_what_codes_are_made_with(numbers: Array) -> None:
    finite = np.where(np.abs(numbers) < 1e37, numbers, np.float32(1))
    found = CODES.check(np.resize(finite, 80), 2104, np.uint8)
    exact = np.abs(np.resize(finite, 80))
    above = (found[896:1056].view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    below = ((found[896:1056].view(np.uint16).astype(np.uint32) - (above > 0)) << 16).view(np.float32)
    assert (above >= exact).all()
    assert (below <= exact).all()


@given(st.integers(-130, 130), st.integers(-300, 300).map(lambda n: np.float32(n / 4)))
def test_the_nearest_level(whole: int, size: np.float32) -> None:
    numbers = np.resize(np.array([whole, size], np.float32), 80)
    found = CODES.check(numbers, 2104, np.int32)
    for levels, at in ((KEY_LEVELS, 264), (VALUE_LEVELS, 344)):
        chosen = np.array(levels)[found[at : at + 80]]
        assert (np.abs(chosen - numbers) == np.abs(np.array(levels)[:, None] - numbers).min(axis=0)).all()


@given(integers(3 * L))
@example(np.repeat(np.array([0, -1, -2139062144], np.int32), L))  # 255 times -128, four times
@example(np.repeat(np.array([2**31 - 1, -1, 0x7F7F7F7F], np.int32), L))
@example(np.repeat(np.array([5, 0x0F0F0F0F, -2139062144], np.int32), L))
def test_dot_products_of_bytes(dots: Twins, numbers: Array) -> None:
    found = dots.check(numbers, 320, np.int32).astype(np.int64)
    acc, unsigned, signed = (part.copy() for part in numbers.reshape(3, L))
    u, s = unsigned.view(np.uint8).reshape(L, 4).astype(np.int64), signed.view(np.int8).reshape(L, 4).astype(np.int64)
    for at, exact in ((0, (u * s).sum(axis=1)), (L, 8 * (u % 16 * s).sum(axis=1))):
        assert np.array_equal(found[at : at + L], (acc + exact).astype(np.int32))


def test_counting() -> None:
    mine, twin = np.array([5, 0, 0], np.int64), np.array([5, 0, 0], np.int64)
    COUNTERS.compiled(mine.view(np.uint8), mine.view(np.uint8), mine)
    COUNTERS.plain(twin, twin, twin)
    assert mine.tolist() == twin.tolist() == [8, 5, 8]


def test_threads_count_together() -> None:
    ops = simd_llvm

    @numba.njit(nogil=True)
    def count(numbers, times):
        for _ in range(times):
            ops.fetch_add(numbers, 0, np.int64(1))

    numbers = np.zeros(1, np.int64)
    count(numbers, 0)
    threads = [threading.Thread(target=count, args=(numbers, 100_000)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers[0] == 400_000


def test_the_twin_checks_bounds() -> None:
    ops, memory = simd_numpy, np.zeros(100, np.uint8)
    ops.load_f32(memory, 36, L)
    for bad in (
        lambda: ops.load_f32(memory, 37, L),
        lambda: ops.load_f32(memory, -4, L),
        lambda: ops.store(memory, 40, np.zeros((1, L), np.float32)),
        lambda: ops.put_u16(memory, 99, 1),
    ):
        with pytest.raises(AssertionError):
            bad()
