"""Kernels that take a row at a time, against float64: norms, activations, the int8 form, embeddings, rotary angles."""

from __future__ import annotations

import math
from decimal import Decimal, getcontext
from typing import Any

import numba
import numpy as np
import pytest
from proof.line import Arena, made, new_table, new_work, run_line
from tiny.blocks import FOUR_BIT_TYPES, WEIGHT_TYPES, packed, unpacked, wild
from tiny.stream import Stream

from kvist.kernels import elementwise, embedding, matmul, packing, rotary
from kvist.kernels.layout import (
    GROUP,
    GROUP_BYTES,
    NUM_ROWS,
    OUTPUTS,
    PANEL_ROWS,
    POSITIONS,
    STATUS,
    TABLE_HEAD,
    TOKENS,
    padded,
)
from kvist.kernels.layout import quantised_row_bytes as num_quantised_bytes
from kvist.kernels.simd import load_f32, store
from kvist.kernels.static import Static
from kvist.model.convert import row_bytes

Array = np.ndarray[Any, Any]
ULP = 2.0**-24
"""Half a unit in the last place of 1: what one rounding may cost, as a share."""
ROWS = 5
WIDTHS = (1, 16, 31, 32, 40, 96, 576)


def normal(*shape: int, key: str = "x") -> Array:
    return Stream(1, key, *shape).normal(shape)


def quantised(x: Array) -> tuple[Array, Array, Array]:
    """Rows [R, width] in steps that each round as the kernel's do: codes [R, G, 32], scales and code sums [R, G]."""
    groups = x.reshape(len(x), -1, GROUP)
    largest = np.abs(groups).max(axis=-1)
    with np.errstate(over="ignore", invalid="ignore"):  # 127 / 1e-37 is infinite
        inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
        codes = np.clip(np.rint(groups * inverse[..., None]), -127, 127).astype(np.int8)
    return codes, largest / np.float32(127), codes.astype(np.int32).sum(axis=-1, dtype=np.int32)


def check_quantised(found: Array, x: Array) -> None:
    """``found``: bytes of rows that hold ``x`` [R, width] as codes, scales, sums, and scales times sums."""
    rows, width = x.shape
    count = width // GROUP
    codes, scales, sums = quantised(x)
    assert np.array_equal(found[:, :width].view(np.int8).reshape(codes.shape), codes)
    assert np.array_equal(found[:, width : width + 4 * count].copy().view(np.float32), scales)
    assert np.array_equal(found[:, width + 4 * count : width + 8 * count].copy().view(np.int32), sums)
    assert np.array_equal(found[:, width + 8 * count :].copy().view(np.float32), scales * sums.astype(np.float32))
    assert found.shape == (rows, num_quantised_bytes(width))


# ---- norms


def run_norm(kind: str, x: Array, weight: Array, bias: Array | None, is_quantised: bool, outputs: list[int]) -> Array:
    """Rows ``outputs`` of x [R, width], normed: f32 [N, padded width], or the bytes of the int8 form."""
    width = x.shape[1]
    wide = padded(width)
    weights, work = Arena(), new_work()
    offsets = {
        "weight": weights.put(np.pad(weight, (0, wide - width))),
        "bias": -1 if bias is None else weights.put(np.pad(bias, (0, wide - width))),
        "eps": weights.put(np.array([1e-5], np.float32)),
    }
    at = work.put(np.pad(x, ((0, 0), (0, wide - width)), constant_values=7))  # what is past the width mustn't count
    scratch, row = work.room(wide), num_quantised_bytes(wide) if is_quantised else 4 * wide
    out = work.room(len(outputs), row, dtype=np.uint8)
    table = new_table(scratch=scratch, lists=(outputs,), **{str(OUTPUTS): TABLE_HEAD})
    kernel = made(elementwise.norm_kernel, elementwise.NORMS[kind], int(is_quantised))
    run_line(
        kernel, elementwise.NORM, len(outputs), weights=weights, work=work, table=table, x=at, stride=4 * wide,
        width=width, out=out, out_stride=row, is_last=1, **offsets,
    )  # fmt: skip
    assert work.get(STATUS, 1, dtype=np.int32) == 0
    found = work.get(out, len(outputs), row, dtype=np.uint8)
    return found if is_quantised else found.view(np.float32)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_norms(kind: str, width: int) -> None:
    """Sums of squares round once for each 16th term, then the tree; the rest is half a dozen roundings."""
    x = normal(ROWS, width) * np.array([[1], [1e-3], [1e3], [30], [1]], np.float32)
    weight, bias = normal(width, key="weight"), normal(width, key="bias") if kind == "layer" else None
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=1, keepdims=True) if kind == "layer" else wide
    expected = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + np.float32(1e-5)) * weight
    size = np.abs(wide).max(axis=1, keepdims=True) / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
    allowed = (width / 16 + 12) * ULP * (np.abs(expected) + size * np.abs(weight))
    if bias is not None:
        expected, allowed = expected + bias, allowed + 4 * ULP * np.abs(bias)
    outputs = [4, 0, 1, 2, 3]
    found = run_norm(kind, x, weight, bias, False, outputs)
    assert (np.abs(found[:, :width] - expected[outputs]) <= allowed[outputs]).all()
    assert (found[:, width:].view(np.uint32) == 0).all()
    check_quantised(run_norm(kind, x, weight, bias, True, outputs), found)


# ---- the int8 form


def test_the_int8_form_of_any_numbers() -> None:
    """Zeros, subnormals, one large among small, and values half way between two codes."""
    halves = np.arange(-127.5, 128).astype(np.float32)
    x = np.concatenate(
        [np.resize(part, 32) for part in (0, halves[:31], halves[-31:], 1e-44, [1e30, 1, -1e29], np.arange(32) / 31)]
    ).astype(np.float32)
    rows = np.stack([x, -x, x[::-1]])
    work = new_work()
    at, out = work.put(rows), work.room(3, num_quantised_bytes(192), dtype=np.uint8)
    quantise = numba.njit(lambda memory, at, width, out: elementwise.quantise(memory, at, width, out, 3))
    for number in range(3):
        quantise(work.bytes, at + number * rows.strides[0], 192, out + number * num_quantised_bytes(192))
    found = work.get(out, 3, num_quantised_bytes(192), dtype=np.uint8)
    is_whole = np.abs(rows).reshape(3, 6, 32).max(axis=-1) > 4e-37
    codes, scales, _ = quantised(rows)
    mine = found[:, :192].view(np.int8).reshape(3, 6, 32)
    assert np.array_equal(mine[is_whole], codes[is_whole])
    mine_scales = found[:, 192:216].copy().view(np.float32)
    assert np.array_equal(mine_scales, scales)
    error = np.abs(mine * mine_scales[..., None].astype(np.float64) - rows.reshape(3, 6, 32))
    assert (error <= np.maximum(0.5001 * scales[..., None], 4e-37)).all()
    assert work.get(STATUS, 1, dtype=np.int32) == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("position", [0, 15, 16, 40, 63])
def test_what_is_not_finite_is_reported(bad: float, position: int) -> None:
    x = normal(1, 64)
    x[0, position] = bad
    work = new_work()
    at, out = work.put(x), work.room(num_quantised_bytes(64), dtype=np.uint8)
    quantise = numba.njit(lambda memory, at, width, out: elementwise.quantise(memory, at, width, out, 3))
    quantise(work.bytes, at, 64, out)
    assert work.get(STATUS, 1, dtype=np.int32) == 4


# ---- exp and activations


def test_exp_is_within_two_units_in_the_last_place() -> None:
    @numba.njit
    def exps(numbers, out):
        for at in range(0, numbers.size, 64):
            store(out, at, elementwise.exp(load_f32(numbers, at, 16)))

    x = np.concatenate([np.linspace(-87, 88, 1 << 19), normal(1 << 18)]).astype(np.float32)
    found = np.empty_like(x)
    exps(x.view(np.uint8), found.view(np.uint8))
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(found - exact) <= 2 * np.spacing(exact.astype(np.float32))).all()
    ends = np.array([-88, -1e30, -np.inf, 88.0001, 1e30, np.inf, 0, -0.0] * 2, np.float32)
    found = np.empty_like(ends)
    exps(ends.view(np.uint8), found.view(np.uint8))
    low, high = np.exp(np.array([-87.0, 88.0])).astype(np.float32)
    assert np.allclose(found, [low, low, low, high, high, high, 1, 1] * 2, rtol=4 * ULP, atol=0)


def exact_activation(kind: str, x: Array) -> tuple[Array, Array]:
    """(act(x) in f64, how far f32 may be from it): the exponent's own rounding is scaled up by its size."""
    if kind == "gelu":
        tail = np.vectorize(math.erfc)(np.abs(x) / np.sqrt(2)) * np.abs(x) / 2
        return np.maximum(x, 0) - tail, (24 + 3 * np.minimum(x * x, 180)) * ULP * tail + 2 * ULP * np.abs(x) + 1e-35
    exponent = x if kind == "silu" else 2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    with np.errstate(over="ignore"):
        exact = x / (1 + np.exp(-exponent))
    return exact, (6 + 6 * np.minimum(np.abs(exponent), 90)) * ULP * np.abs(exact) + 1e-35


@pytest.mark.parametrize("is_gated", [True, False])
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh", "gelu"])
def test_activations(kind: str, is_gated: bool) -> None:
    for width in (1, 32, 40, 100):
        for segment in (32, 64, 128):
            check_activation(kind, is_gated, width, segment)


def check_activation(kind: str, is_gated: bool, width: int, segment: int) -> None:
    wide = padded(width)
    gate = np.resize(np.concatenate([normal(60) * 3, [0, -0.0, 20, -20, 90, -90, 1e-40]]), (ROWS, width))
    gate, up = gate.astype(np.float32), normal(ROWS, width, key="up")
    expected, allowed = exact_activation(kind, gate.astype(np.float64))
    if is_gated:
        expected, allowed = expected * up, allowed * np.abs(up) + 2 * ULP * np.abs(expected * up) + 1e-44
    found = {}
    for is_quantised in (0, 1):
        work = new_work()
        stride = 4 * (wide + padded(width, 16))
        rows = np.full((ROWS, stride // 4), np.nan, np.float32)
        rows[:, :width], rows[:, padded(width, 16) : padded(width, 16) + width] = gate, up
        at, scratch = work.put(rows), work.room(wide)
        row = num_quantised_bytes(wide) if is_quantised else 4 * wide
        out = work.room(ROWS, row, dtype=np.uint8)
        run_line(
            made(elementwise.activation_kernel, elementwise.ACTIVATIONS[kind], is_quantised), elementwise.ACT,
            ROWS * -(-wide // segment), weights=Arena(), work=work, table=new_table(scratch=scratch), gate=at,
            up=at + 4 * padded(width, 16) if is_gated else -1, stride=stride, width=width, segment=segment, out=out,
            out_stride=row,
        )  # fmt: skip
        assert work.get(STATUS, 1, dtype=np.int32) == 0
        found[is_quantised] = work.get(out, ROWS, row, dtype=np.uint8)
    values = found[0].view(np.float32)
    assert (np.abs(values[:, :width] - expected) <= allowed).all()
    assert (values[:, width:] == 0).all()
    check_quantised(found[1], values)


# ---- embeddings


def panels(form: str, raw: Array, rows: int, width: int) -> Array:
    order = np.full(padded(rows, PANEL_ROWS), -1, np.int64)
    order[:rows] = np.arange(rows)
    num_panels = order.size // PANEL_ROWS
    target = np.zeros(num_panels * (padded(width) // GROUP) * GROUP_BYTES[form], np.uint8)
    source = raw.copy()
    source.flags.writeable = False
    packing.pack(source, row_bytes(form, width), order, width, target, 0, 0, num_panels, Static(matmul.FORMS[form]))
    return target


@pytest.mark.parametrize("is_learned", [False, True])
@pytest.mark.parametrize("form", WEIGHT_TYPES + FOUR_BIT_TYPES)
def test_embeddings_are_the_files_numbers(form: str, is_learned: bool) -> None:
    """Bit for bit, times a scale: the file's scale, product and minimum each rounded as the gguf package does."""
    rows, width = 37, 256 if form == "q4_k" else 96
    matrices = [packed(form, rows, width, 1)]
    if form.startswith("q"):
        matrices += [wild(form, rows, width, seed) for seed in (1, 2)]
    else:
        narrow = packed(form, rows, 40, 3)
        matrices.append(unpacked(form, narrow.raw, rows, 40))
    for matrix in matrices:
        width = matrix.values.shape[1]
        tokens, positions = [36, 0, 15, 16, 36], [0, 3, 1, 2, 2]
        learned = normal(4, width, key="learned")
        weights, work = Arena(), new_work()
        w, at = weights.put(panels(form, matrix.raw, rows, width)), weights.put(learned)
        scale = weights.put(np.array([1.5], np.float32))
        out = work.room(5, padded(width))
        table = new_table(
            lists=(tokens, positions), **{str(NUM_ROWS): 5, str(TOKENS): TABLE_HEAD, str(POSITIONS): TABLE_HEAD + 5}
        )
        run_line(
            made(embedding.embedding_kernel, matmul.FORMS[form]), embedding.EM, 5, weights=weights, work=work,
            table=table, w=w, width=width, padded=padded(width), out=out, out_stride=4 * padded(width),
            positions=at if is_learned else -1, scale=scale,
        )  # fmt: skip
        expected = matrix.values[tokens] * np.float32(1.5) + (learned[positions] if is_learned else np.float32(0))
        assert np.array_equal(work.get(out, 5, padded(width))[:, :width], expected)


# ---- rotary positions


def exact_sine_and_cosine(angle: float) -> tuple[Decimal, Decimal]:
    """By Taylor's series in 60 digits."""
    getcontext().prec = 60
    two_pi = Decimal("6.28318530717958647692528676655900576839433879875021164194988918461563281257241799725606965")
    x = Decimal(angle) % two_pi
    terms = [Decimal(1)]
    for n in range(1, 90):
        terms.append(terms[-1] * x / n)
    sine = sum(term * (-1) ** n for n, term in enumerate(terms[1::2]))
    return sine, sum(term * (-1) ** n for n, term in enumerate(terms[0::2]))


def test_sine_and_cosine_to_the_last_place_of_f64() -> None:
    both = numba.njit(lambda angle: rotary.sine_and_cosine(angle))  # noqa: PLW0108 (what it calls is a piece of a kernel)
    quarters = np.arange(0, 636_000, 9973) * (np.pi / 2)
    angles = np.concatenate(
        [quarters, np.nextafter(quarters, 0), np.abs(normal(80)) * 1000, [0, 1e-300, 0.785, 999_999.9, 1e6]]
    )
    for angle in angles:
        for found, exact in zip(both(float(angle)), exact_sine_and_cosine(float(angle)), strict=True):
            spacing = Decimal(float(np.spacing(max(abs(float(exact)), 2e-17))))
            assert abs(Decimal(found) - exact) <= 2 * spacing, (angle, found, exact)


def test_rotary_positions_to_a_million() -> None:
    """The angle is position times frequency, rounded to f32 as the oracles do; then one rounding and one product."""
    frequencies = (10000.0 ** (-np.arange(0, 32, 2) / 32)).astype(np.float32)
    positions = [0, 1, 2, 15, 255, 4095, 131_071, 524_287, 999_999, 1_000_000]
    weights, work = Arena(), new_work()
    at, factor = weights.put(frequencies), weights.put(np.array([1.5], np.float32))
    out = work.room(len(positions), 2, 16)
    table = new_table(lists=(positions,), **{str(POSITIONS): TABLE_HEAD})
    run_line(
        made(rotary.rotary_kernel), rotary.ROPE, len(positions), weights=weights, work=work, table=table,
        frequencies=at, count=16, factor=factor, out=out, out_stride=128, sink_out=0,
    )  # fmt: skip
    cosine, sine = work.get(out, len(positions), 2, 16).swapaxes(0, 1)
    angles = (np.array(positions, np.float32)[:, None] * frequencies).astype(np.float64)
    for found, exact in ((cosine, np.cos(angles)), (sine, np.sin(angles))):
        nearest = exact.astype(np.float32) * np.float32(1.5)
        assert (np.abs(found - nearest) <= np.spacing(np.abs(nearest))).all()
