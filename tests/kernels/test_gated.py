"""Gate, up and activation in one line: the bytes of the lines one by one, however many rows there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from proof.line import Arena, made, new_table, new_work, run_line
from tiny.blocks import packed
from tiny.stream import Stream

from kvist.kernels import elementwise, gated, matmul, packing
from kvist.kernels.layout import GROUP, NUM_ROWS, PANEL_ROWS, ROW_STEP, STATUS, quantised_row_bytes
from kvist.kernels.static import Static
from kvist.model.convert import row_bytes

Array = np.ndarray[Any, Any]
MLP, WIDTH, MOST = 96, 96, 21
CASES = (("q4_1", "silu"), ("q8_0", "silu"), ("q4_0", "gelu_tanh"))


class Half:
    """Gate and up of one form in one matrix, and rows to multiply them with."""

    def __init__(self, form: str, activation: str) -> None:
        self.form, self.activation = matmul.FORMS[form], elementwise.ACTIVATIONS[activation]
        raw, num_panels = packed(form, 2 * MLP, WIDTH, 7).raw.copy(), 2 * MLP // PANEL_ROWS
        raw.flags.writeable = False
        self.panels = np.zeros(num_panels * WIDTH // GROUP * matmul.GROUP_BYTES[form], np.uint8)
        order = np.arange(2 * MLP)
        packing.pack(raw, row_bytes(form, WIDTH), order, WIDTH, self.panels, 0, 0, num_panels, Static(self.form))
        self.bias = Stream(7, "bias").normal((2 * MLP,))
        self.x = as_int8(Stream(7, "x").normal((MOST, WIDTH)))

    def place(self, rows: int, has_bias: bool) -> tuple[Arena, Arena, dict[str, int]]:
        weights, work = Arena(), new_work()
        values = {
            "w": weights.put(self.panels),
            "width": WIDTH,
            "x": work.put(self.x[:rows]),
            "x_stride": quantised_row_bytes(WIDTH),
            "bias": weights.put(self.bias) if has_bias else -1,
        }
        return weights, work, values

    def one_by_one(self, rows: int, *, has_bias: bool, row_step: int = 1) -> Array:
        """The bytes of the int8 form, by two lines."""
        weights, work, values = self.place(rows, has_bias)
        up, out = work.room(rows, 2 * MLP), work.room(rows, quantised_row_bytes(MLP), dtype=np.uint8)
        scratch = work.room(max(MLP * 4, matmul.scratch_bytes(WIDTH)), dtype=np.uint8)
        table = new_table(scratch=scratch, **{str(NUM_ROWS): rows, str(ROW_STEP): row_step})
        run_line(
            made(matmul.matmul_kernel, self.form), matmul.MM, 1, weights=weights, work=work, table=table,
            panels=2 * MLP // PANEL_ROWS, out=up, out_stride=8 * MLP, adds=0, is_last=0, chunk_panels=99,
            chunk_rows=rows, stride_panels=2, **values,
        )  # fmt: skip
        run_line(
            made(elementwise.activation_kernel, self.activation, 1), elementwise.ACT, -(-rows // row_step),
            weights=weights, work=work, table=table, gate=up, up=up + 4 * MLP, stride=8 * MLP, width=MLP,
            segment=MLP, out=out, out_stride=quantised_row_bytes(MLP),
        )  # fmt: skip
        return work.get(out, rows, quantised_row_bytes(MLP), dtype=np.uint8)

    def at_once(self, rows: int, *, has_bias: bool) -> tuple[Array, int]:
        """The same by one line, and the status."""
        weights, work, values = self.place(rows, has_bias)
        out = work.room(rows, quantised_row_bytes(MLP), dtype=np.uint8)
        scratch = work.room(gated.scratch_bytes(WIDTH, rows), dtype=np.uint8)
        run_line(
            made(gated.gated_kernel, self.form, self.activation), gated.GATED, MLP // GROUP, weights=weights,
            work=work, table=new_table(scratch=scratch, **{str(NUM_ROWS): rows}), panels=MLP // PANEL_ROWS, out=out,
            out_stride=quantised_row_bytes(MLP), stride_groups=2, **values,
        )  # fmt: skip
        return work.get(out, rows, quantised_row_bytes(MLP), dtype=np.uint8), int(
            work.get(STATUS, 1, dtype=np.int64)[0]
        )


def as_int8(x: Array) -> Array:
    """Rows in the form that quantised weights are multiplied with, by the kernel that norms with weights of 1."""
    weights, work = Arena(), new_work()
    ones, eps = weights.put(np.ones(WIDTH, np.float32)), weights.put(np.zeros(1, np.float32))
    at, scratch = work.put(x), work.room(WIDTH)
    out = work.room(len(x), quantised_row_bytes(WIDTH), dtype=np.uint8)
    run_line(
        made(elementwise.norm_kernel, elementwise.RMS, 1), elementwise.NORM, 4, weights=weights, work=work,
        table=new_table(scratch=scratch, **{str(NUM_ROWS): len(x), str(ROW_STEP): 6}), x=at, stride=4 * WIDTH,
        width=WIDTH, weight=ones, bias=-1, eps=eps, out=out, out_stride=quantised_row_bytes(WIDTH), is_last=0,
    )  # fmt: skip
    return work.get(out, len(x), quantised_row_bytes(WIDTH), dtype=np.uint8)


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def half(request) -> Half:
    return Half(*request.param)


@pytest.mark.parametrize("rows", [1, 4, 5, 8, 13, MOST])
def test_the_same_bytes_as_line_by_line(half: Half, rows: int) -> None:
    for has_bias in (False, True):
        expected = half.one_by_one(rows, has_bias=has_bias)
        found, status = half.at_once(rows, has_bias=has_bias)
        assert np.array_equal(found, expected)
        assert status == 0
        assert np.array_equal(half.one_by_one(rows, has_bias=has_bias, row_step=4), expected)


def test_a_number_that_is_none_is_reported(half: Half) -> None:
    half.bias[40] = np.nan
    _, status = half.at_once(MOST, has_bias=True)
    half.bias[40] = 0
    assert status > 0
