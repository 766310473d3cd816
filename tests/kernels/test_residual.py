"""What is added to the residual stream, norms of parts of a row, caps and peaks, against float64."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from proof.line import Arena, made, new_table, new_work, run_line
from tiny.stream import Stream

from kvist.kernels import caps, elementwise, peaks, residual
from kvist.kernels.elementwise import NORMS
from kvist.kernels.layout import padded
from kvist.kernels.simd import load_f32, splat_f32, store

Array = np.ndarray[Any, Any]
ULP = 2.0**-24
ROWS = 5
EPS = np.float32(1e-5)


def normal(*shape: int, key: str = "x") -> Array:
    return Stream(2, key, *shape).normal(shape)


def normed(x: Array, kind: str, axis: int = -1) -> Array:
    """In float64, without weights."""
    x = x.astype(np.float64)
    if kind == "none":
        return x
    x = x - x.mean(axis=axis, keepdims=True) if kind == "layer" else x
    return x / np.sqrt((x**2).mean(axis=axis, keepdims=True) + EPS)


@pytest.mark.parametrize("width", [16, 40, 96])
@pytest.mark.parametrize("kind", NORMS)
def test_a_branch_is_normed_scaled_and_added(kind: str, width: int) -> None:
    wide, scale = padded(width), np.float32(0.3)
    x, branch = normal(ROWS, width), normal(ROWS, width, key="branch")
    weight, bias = normal(width, key="weight"), normal(width, key="bias")
    weights, work = Arena(), new_work()
    pad = ((0, 0), (0, wide - width))
    at, branch_at = work.put(np.pad(x, pad)), work.put(np.pad(branch, pad, constant_values=7))
    scratch = work.room(wide)
    has_bias = kind == "layer"
    run_line(
        made(residual.residual_kernel, NORMS[kind]), residual.RES, ROWS, weights=weights, work=work,
        table=new_table(scratch=scratch), x=at, stride=4 * wide, branch=branch_at, branch_stride=4 * wide, width=width,
        weight=-1 if kind == "none" else weights.put(np.pad(weight, (0, wide - width))),
        bias=weights.put(np.pad(bias, (0, wide - width))) if has_bias else -1,
        eps=weights.put(np.array([EPS])), scale=weights.put(np.array([scale])),
    )  # fmt: skip
    gain = normed(branch, kind) * (1 if kind == "none" else weight) + (bias if has_bias else 0)
    found = work.get(at, ROWS, wide)
    assert np.abs(found[:, :width] - (x + scale * gain)).max() <= 40 * ULP * np.abs(gain).max()
    assert (found[:, width:] == 0).all()


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize(("parts", "width"), [(1, 48), (3, 16), (2, 80)])
def test_parts_of_a_row_are_normed_where_they_stand(kind: str, parts: int, width: int) -> None:
    x = normal(ROWS, parts * width + 16)
    weight = normal(parts, width, key="weight")
    weights, work = Arena(), new_work()
    at = work.put(x)
    run_line(
        made(residual.parts_kernel, NORMS[kind]), residual.PART, ROWS * parts, weights=weights, work=work,
        table=new_table(), x=at, stride=4 * x.shape[1], parts=parts, width=width, weight=weights.put(weight),
        weight_stride=4 * width, eps=weights.put(np.array([EPS])),
    )  # fmt: skip
    found = work.get(at, *x.shape)
    exact = normed(x[:, :-16].reshape(ROWS, parts, width), kind) * weight
    assert np.abs(found[:, :-16] - exact.reshape(ROWS, -1)).max() <= 40 * ULP * np.abs(exact).max()
    assert np.array_equal(found[:, -16:], x[:, -16:])


def test_a_row_without_a_norm_is_as_it_is() -> None:
    x = np.pad(normal(ROWS, 40), ((0, 0), (0, 24)), constant_values=7)
    weights, work = Arena(), new_work()
    at, out = work.put(x), work.room(ROWS, 64)
    run_line(
        made(elementwise.norm_kernel, NORMS["none"], 0), elementwise.NORM, ROWS, weights=weights, work=work,
        table=new_table(), x=at, stride=256, width=40, weight=-1, bias=-1, eps=weights.put(np.array([EPS])), out=out,
        out_stride=256, is_last=0,
    )  # fmt: skip
    found = work.get(out, ROWS, 64)
    assert np.array_equal(found[:, :40], x[:, :40])
    assert (found[:, 40:] == 0).all()


def test_a_capped_number_is_within_four_roundings_of_the_cap() -> None:
    @numba.njit
    def cap(numbers, out, limit):
        for at in range(0, numbers.size, 64):
            store(out, at, caps.capped(load_f32(numbers, at, 16), splat_f32(limit, 16)))

    x = np.concatenate([np.linspace(-400, 400, 1 << 16), normal(1 << 15) * 20, [0, -0.0, 1e-30, 1e30] * 4])
    x = x.astype(np.float32)
    for limit in (1.5, 30.0, 50.0):
        found = np.empty_like(x)
        cap(x.view(np.uint8), found.view(np.uint8), np.float32(limit))
        assert np.abs(found - limit * np.tanh(x.astype(np.float64) / limit)).max() <= 4 * ULP * limit
        assert np.abs(found).max() <= limit


def test_logits_are_capped_in_place() -> None:
    x = normal(3, 112) * np.float32(9)
    weights, work = Arena(), new_work()
    at = work.put(x)
    run_line(
        made(caps.cap_kernel), caps.CAP, 3 * 4, weights=weights, work=work, table=new_table(), x=at, stride=448,
        width=100, segment=32, cap=weights.put(np.array([5], np.float32)),
    )  # fmt: skip
    found = work.get(at, 3, 112)
    assert np.abs(found[:, :100] - 5 * np.tanh(x[:, :100].astype(np.float64) / 5)).max() <= 20 * ULP


def test_peaks_are_the_largest_of_each_segment() -> None:
    width, stride = 2 * peaks.SEGMENT + 100, 4 * 1152
    x = np.full((4, stride // 4), 99, np.float32)  # what stands past the width doesn't count
    x[:, :width] = normal(4, width)
    x[1, 5], x[2, width - 1], x[3, :] = np.nan, np.inf, -np.inf
    work = new_work()
    at, out = work.put(x), work.put(np.zeros((4, 16), np.float32))
    with np.errstate(invalid="ignore"):
        run_line(
            made(peaks.peaks_kernel), peaks.PEAKS, 4 * 2, weights=Arena(), work=work, table=new_table(), x=at,
            stride=stride, width=width, out=out, out_stride=64, segments=3, chunk_segments=2,
        )  # fmt: skip
    found = work.get(out, 4, 16)
    ends = (peaks.SEGMENT, 2 * peaks.SEGMENT)
    assert np.array_equal(found[0, :3], [part.max() for part in np.split(x[0, :width], ends)])
    assert np.isnan(found[1, 0])
    assert np.isnan(found[2, 2])
    assert np.isfinite(found[[1, 2, 3]]).sum() == 3 * 16 - 2
    assert (found[:, 3:] == 0).all()
