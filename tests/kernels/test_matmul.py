"""Matrix products: biases and sums to the bit, and the same bytes however rows and panels are divided.

``tests/test_weights_oracle.py`` holds the products themselves to the gguf package's numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proof.line import Arena, made, new_table, new_work, run_line
from tiny.blocks import FOUR_BIT_TYPES, WEIGHT_TYPES, packed
from tiny.stream import Stream

from kvist.kernels import elementwise, matmul, packing, target
from kvist.kernels.layout import (
    GROUP,
    GROUP_BYTES,
    NUM_OUTPUTS,
    NUM_ROWS,
    PANEL_ROWS,
    STATUS,
    TABLE_HEAD,
    padded,
    quantised_row_bytes,
)
from kvist.kernels.static import Static
from kvist.model.convert import row_bytes

Array = np.ndarray[Any, Any]
ROWS_OUT, MOST = 83, 21
FORMS = WEIGHT_TYPES + FOUR_BIT_TYPES


class Product:
    """A matrix [ROWS_OUT, WIDTH] of one form, and vectors to multiply it with."""

    def __init__(self, form: str) -> None:
        self.form, self.is_quantised = form, form.startswith("q")
        self.kernel = made(matmul.matmul_kernel, matmul.FORMS[form])
        self.width = WIDTH = 256 if form == "q4_k" else 96
        self.weights, order = packed(form, ROWS_OUT, WIDTH, 7), np.full(padded(ROWS_OUT, PANEL_ROWS), -1, np.int64)
        order[:ROWS_OUT] = np.arange(ROWS_OUT)
        self.num_panels = order.size // PANEL_ROWS
        self.panels = np.zeros(self.num_panels * WIDTH // GROUP * GROUP_BYTES[form], np.uint8)
        raw = self.weights.raw.copy()
        raw.flags.writeable = False
        packing.pack(
            raw, row_bytes(form, WIDTH), order, WIDTH, self.panels, 0, 0, self.num_panels, Static(matmul.FORMS[form])
        )
        self.x = Stream(7, "x").normal((MOST, WIDTH))
        self.bias = np.pad(Stream(7, "bias").normal((ROWS_OUT,)), (0, order.size - ROWS_OUT))
        self.old = Stream(7, "old").normal((MOST, order.size))
        self.whole = self.run(MOST)

    def run(
        self, rows: int, *, first: int = 0, chunk_panels: int = 99, chunk_rows: int = 99, has_bias: bool = False,
        adds: bool = False, is_last: bool = False,
    ) -> Array:  # fmt: skip
        """Products of vectors ``first``.. [rows, 96 with the padding]."""
        weights, work = Arena(), new_work()
        x_stride = quantised_row_bytes(self.width) if self.is_quantised else 4 * self.width
        x, w = work.put(self.as_work(self.x[first : first + rows])), weights.put(self.panels)
        bias = weights.put(self.bias) if has_bias else -1
        out, scratch = (
            work.put(self.old[first : first + rows]),
            work.room(matmul.scratch_bytes(self.width), dtype=np.uint8),
        )
        counts = {str(NUM_OUTPUTS if is_last else NUM_ROWS): rows}
        chunk_panels, chunk_rows = min(chunk_panels, self.num_panels), min(chunk_rows, rows)
        num_chunks = -(-self.num_panels // chunk_panels) * -(-rows // chunk_rows)
        run_line(
            self.kernel, matmul.MM, num_chunks, weights=weights, work=work,
            table=new_table(scratch=scratch, **counts), w=w, panels=self.num_panels, width=self.width, x=x,
            x_stride=x_stride, out=out, out_stride=4 * self.old.shape[1], bias=bias, adds=int(adds),
            is_last=int(is_last), chunk_panels=chunk_panels, chunk_rows=chunk_rows, stride_panels=2,
        )  # fmt: skip
        return work.get(out, rows, self.old.shape[1])

    def as_work(self, x: Array) -> Array:
        """Rows as they are, or made int8 by the kernel that norms with weights of 1."""
        if not self.is_quantised:
            return x
        weights, work = Arena(), new_work()
        ones, eps = weights.put(np.ones(self.width, np.float32)), weights.put(np.zeros(1, np.float32))
        at, scratch = work.put(x), work.room(self.width)
        out = work.room(len(x), quantised_row_bytes(self.width), dtype=np.uint8)
        run_line(
            made(elementwise.norm_kernel, elementwise.RMS, 1), elementwise.NORM, len(x), weights=weights, work=work,
            table=new_table(scratch=scratch), x=at, stride=4 * self.width, width=self.width, weight=ones, bias=-1,
            eps=eps, out=out, out_stride=quantised_row_bytes(self.width), is_last=0,
        )  # fmt: skip
        assert work.get(STATUS, 1, dtype=np.int32) == 0
        return work.get(out, len(x), quantised_row_bytes(self.width), dtype=np.uint8)


@pytest.fixture(scope="module", params=FORMS)
def product(request) -> Product:
    return Product(request.param)


def test_a_bias_and_what_is_there_already_are_added_in_this_order(product: Product) -> None:
    plain, bias, old = product.whole, product.bias, product.old
    assert np.array_equal(product.run(MOST, has_bias=True), plain + bias)
    assert np.array_equal(product.run(MOST, adds=True), plain + old)
    assert np.array_equal(product.run(MOST, has_bias=True, adds=True), (plain + bias) + old)
    assert (plain[:, ROWS_OUT:] == 0).all()


@pytest.mark.parametrize("rows", range(1, MOST + 1))
def test_a_row_is_the_same_in_any_company(product: Product, rows: int) -> None:
    assert np.array_equal(product.run(rows), product.whole[:rows])
    assert np.array_equal(product.run(rows, first=MOST - rows), product.whole[MOST - rows :])


@pytest.mark.parametrize("form", ["f32", "q8_0", "q4_1"])
@pytest.mark.parametrize(("tile_rows", "pair_rows", "pairs_from"), [(4, 0, 0), (6, 0, 0), (4, 5, 5), (6, 5, 13)])
def test_any_tiles(form: str, tile_rows: int, pair_rows: int, pairs_from: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processors differ in how many rows and panels they take at a time, and in nothing else."""
    product = Product(form)
    host = target.current()
    tiles = replace(host, tile_rows=tile_rows, pair_rows=pair_rows, pairs_from=pairs_from, widened_from=pairs_from)
    monkeypatch.setattr(target, "current", lambda: tiles)
    product.kernel = matmul.matmul_kernel(matmul.FORMS[form])
    for rows in range(1, MOST + 1):
        assert np.array_equal(product.run(rows, chunk_panels=4), product.whole[:rows])


@settings(max_examples=25)
@given(st.integers(1, MOST), st.integers(1, 7), st.integers(1, 25), st.booleans(), st.booleans(), st.booleans())
def test_any_division_into_chunks(
    product: Product, rows: int, chunk_panels: int, chunk_rows: int, has_bias: bool, adds: bool, is_last: bool
) -> None:
    settings = {"has_bias": has_bias, "adds": adds}
    whole = product.run(rows, **settings)
    divided = product.run(rows, chunk_panels=chunk_panels, chunk_rows=chunk_rows, is_last=is_last, **settings)
    assert np.array_equal(divided, whole)


@pytest.mark.parametrize("form", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("width", [1, 2, 31, 33, 40])
def test_packing_floats_of_any_width(form: str, width: int) -> None:
    """The panels hold each number where the form's layout says, and zeros past the width."""
    check_packing(form, width, np.arange(20))


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
@settings(max_examples=15)
def test_packing_any_rows_in_any_order(form: str, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(-1, 19), min_size=1, max_size=50))
    check_packing(form, 256 if form == "q4_k" else 64, np.array(rows))


def check_packing(form: str, width: int, wanted: Array) -> None:
    """Pack rows in an order, -1 for none; read panels 1.. too, apart from the first; nothing else is written."""
    source = packed("f32" if form == "f32" else form, 20, padded(width), 3)
    size = row_bytes(form, width)
    raw = np.ascontiguousarray(source.raw.reshape(20, -1)[:, :size])
    raw.flags.writeable = False
    order = np.full(padded(len(wanted), PANEL_ROWS), -1, np.int64)
    order[: len(wanted)] = wanted
    num_panels, panel_bytes = order.size // PANEL_ROWS, padded(width) // GROUP * GROUP_BYTES[form]
    target = np.zeros(64 + num_panels * panel_bytes + 64, np.uint8)
    packing.check_pack(raw.reshape(-1), size, order, target, 64, num_panels * panel_bytes, form)
    for first, end in ((1, num_panels), (0, min(1, num_panels))):
        packing.pack(raw.reshape(-1), size, order, width, target, 64, first, end, Static(matmul.FORMS[form]))
    assert not target[:64].any()
    assert not target[64 + num_panels * panel_bytes :].any()
    panels = target[64 : 64 + num_panels * panel_bytes].reshape(num_panels, panel_bytes)
    found = unpacked(form, panels, padded(width)).reshape(order.size, -1)
    values = np.where(order[:, None] >= 0, source.values[order], np.float32(0))
    assert np.array_equal(found[:, :width], values[:, :width])
    assert (found[:, width:] == 0).all()


def unpacked(form: str, panels: Array, width: int) -> Array:
    """Numbers of panels [P, 16, width], by the layouts that kernels.matmul documents."""
    count = len(panels)
    if form == "f32":
        return panels.view(np.float32).reshape(count, width, 16).swapaxes(1, 2)
    if form == "f16":
        return panels.view(np.float16).reshape(count, width, 16).swapaxes(1, 2).astype(np.float32)
    if form == "bf16":
        pairs = panels.view(np.uint16).reshape(count, width // 2, 16, 2).transpose(0, 2, 1, 3).reshape(count, 16, width)
        return (pairs.astype(np.uint32) << 16).view(np.float32)
    if form == "q4_k":
        return unpacked_q4_k(panels, width)
    groups = panels.reshape(count, width // GROUP, -1)
    codes = 512 if form == "q8_0" else 256
    scales = groups[..., codes : codes + 32].copy().view(np.float16).astype(np.float32)  # [P, G, 16]
    if form == "q8_0":
        numbers = groups[..., :512].reshape(count, -1, 8, 16, 4).transpose(0, 3, 1, 2, 4).astype(np.float32)
        is_there = (scales != 0).swapaxes(1, 2)[..., None]  # a row that isn't there has codes of 0, which mean -128
        numbers = np.where(is_there, numbers.reshape(count, 16, -1, 32) - 128, 0)
    else:
        pairs = groups[..., :256].reshape(count, -1, 4, 1, 16, 4).transpose(0, 4, 1, 2, 3, 5)
        numbers = np.concatenate([pairs & 15, pairs >> 4], axis=4).reshape(count, 16, -1, 32).astype(np.float32)
        if form == "q4_z":
            numbers += groups[..., 288:].view(np.int8).astype(np.float32).swapaxes(1, 2)[..., None]
        numbers -= 8 if form == "q4_0" else 0
    numbers = numbers * scales.swapaxes(1, 2)[..., None]
    if form == "q4_1":
        numbers = numbers + groups[..., 288:320].copy().view(np.float16).astype(np.float32).swapaxes(1, 2)[..., None]
    return numbers.reshape(count, 16, width) + np.float32(0)


def unpacked_q4_k(panels: Array, width: int) -> Array:
    """The same of q4_k: blocks of 256 inputs with d and -dmin, their groups with two small numbers each."""
    blocks = panels.reshape(len(panels), width // 256, -1)
    d, dmin = (blocks[..., at : at + 32].copy().view(np.float16).astype(np.float32) for at in (0, 32))  # [P, B, 16]
    groups = blocks[..., 64:].reshape(len(panels), width // 256, 8, 288)
    scales, minima = (groups[..., at : at + 16].view(np.int8).astype(np.float32) for at in (256, 272))  # [P, B, 8, 16]
    pairs = groups[..., :256].reshape(*groups.shape[:3], 4, 1, 16, 4)
    codes = np.concatenate([pairs & 15, pairs >> 4], axis=4).transpose(0, 1, 2, 5, 3, 4, 6)  # [P, B, 8, 16, 4, 2, 4]
    codes = codes.reshape(*scales.shape, GROUP).astype(np.float32)
    numbers = (d[:, :, None] * scales)[..., None] * codes + (dmin[:, :, None] * minima)[..., None]
    return numbers.transpose(0, 3, 1, 2, 4).reshape(len(panels), 16, width) + np.float32(0)


def test_a_call_that_would_leave_its_arrays_is_refused() -> None:
    raw, order, target = np.zeros(20 * 34, np.uint8), np.arange(16), np.zeros(544, np.uint8)
    packing.check_pack(raw, 34, order, target, 0, 544, "q8_0")
    for wrong in (
        (raw, 34, order + 5, target, 0, 544, "q8_0"),
        (raw, 34, order[:15], target, 0, 544, "q8_0"),
        (raw, 34, order, target, 1, 544, "q8_0"),
        (raw, 34, order, target, -1, 544, "q8_0"),
        (raw.view(np.int8), 34, order, target, 0, 544, "q8_0"),
        (raw, 34, order, target, 0, 544, "q5_0"),
    ):
        with pytest.raises(AssertionError):
            packing.check_pack(*wrong)
    assert TABLE_HEAD > 0
