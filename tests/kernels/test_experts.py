"""Choosing experts, places for their rows, their matrices, the sum: each against NumPy, and alike in any company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proof.line import Arena, made, new_table, new_work, run_line
from tiny.stream import Stream

from kvist.kernels import elementwise, experts, matmul
from kvist.kernels.layout import LANES, NUM_ROWS, STATUS, padded
from kvist.kernels.simd_numpy import fma

Array = np.ndarray[Any, Any]
INTS = {"dtype": np.int32}
TOLERANCE = 1e-6
"""Softmaxes and sigmoids of f32 with an exp within 2 units in the last place."""


def routed(
    logits: Array, chosen: int, *, scores: str = "softmax", is_normed: bool = True, scale: float = 1.0,
    bias: Array | None = None, groups: int = 1, kept_groups: int = 1, group_best: int = 1,
) -> tuple[Array, Array, int]:  # fmt: skip
    """Picks and gains [rows, chosen], and the status."""
    weights, work = Arena(), new_work()
    rows, number = logits.shape
    whole = padded(number, LANES)
    wide = np.full((rows, whole), 7, np.float32)
    wide[:, :number] = logits
    scale_at = weights.put(np.array([scale], np.float32))
    bias_at = -1 if bias is None else weights.put(np.pad(bias.astype(np.float32), (0, whole - number)))
    at, picks, gains = work.put(wide), work.room(rows, chosen, **INTS), work.room(rows, chosen)
    scratch = work.room(experts.route_scratch_bytes(number), dtype=np.uint8)
    run_line(
        made(experts.route_kernel), experts.ROUTE, rows, weights=weights, work=work, table=new_table(scratch=scratch),
        logits=at, stride=4 * whole, experts=number, chosen=chosen, scores=experts.SCORES[scores],
        is_normed=int(is_normed), scale=scale_at, bias=bias_at, groups=groups, kept_groups=kept_groups,
        group_best=group_best, picks=picks, gains=gains,
    )  # fmt: skip
    return work.get(picks, rows, chosen, **INTS), work.get(gains, rows, chosen), int(work.get(STATUS, 1, **INTS)[0])


def twin(
    logits: Array, chosen: int, *, scores: str = "softmax", is_normed: bool = True, scale: float = 1.0,
    bias: Array | None = None, groups: int = 1, kept_groups: int = 1, group_best: int = 1,
) -> tuple[Array, Array]:  # fmt: skip
    """The same in NumPy, in f64."""
    x = logits.astype(np.float64)
    found = {"softmax": softmax(x), "sigmoid": 1 / (1 + np.exp(-x)), "chosen": x}[scores]
    ranked = found + (0 if bias is None else bias)
    grouped = ranked.reshape(len(x), groups, -1)
    best = np.sort(grouped, axis=-1)[..., -group_best:].sum(axis=-1)
    kept = np.argsort(-best, axis=-1, kind="stable")[:, :kept_groups]
    is_kept = np.zeros((len(x), groups), bool)
    np.put_along_axis(is_kept, kept, True, axis=-1)
    ranked = np.where(np.repeat(is_kept, grouped.shape[-1], axis=-1), ranked, -np.inf)
    picks = np.argsort(-ranked, axis=-1, kind="stable")[:, :chosen]
    gains = np.take_along_axis(found, picks, axis=-1)
    if scores == "chosen":
        gains = softmax(gains)
    elif is_normed:
        gains = gains / gains.sum(axis=-1, keepdims=True)
    return picks, gains * scale


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


SETTINGS = [
    {},
    {"is_normed": False},
    {"scores": "chosen"},
    {"scores": "sigmoid", "scale": 2.5},
    {"scores": "sigmoid", "bias": np.linspace(-0.5, 0.5, 24), "groups": 6, "kept_groups": 3, "group_best": 2},
    {"is_normed": False, "scale": 16.0, "groups": 8, "kept_groups": 3},
]


@pytest.mark.parametrize("options", SETTINGS, ids=str)
@pytest.mark.parametrize("chosen", [1, 4, 9])
def test_routing(options: dict[str, Any], chosen: int) -> None:
    logits = 2 * Stream(3, "logits").normal((9, 24))
    picks, gains, status = routed(logits, chosen, **options)
    expected_picks, expected = twin(logits, chosen, **options)
    assert status == 0
    assert picks.tolist() == expected_picks.tolist()
    assert np.abs(gains / expected - 1).max() < TOLERANCE


@pytest.mark.parametrize("number", [1, 3, 16, 17, 40])
def test_ties_go_to_the_lower_expert_and_lanes_past_the_last_are_none(number: int) -> None:
    logits = np.zeros((2, number), np.float32)
    logits[1, number // 2] = -1  # the last of all
    picks, gains, _ = routed(logits, number)
    order = [e for e in range(number) if e != number // 2] + [number // 2]
    assert picks.tolist() == [list(range(number)), order]
    assert np.abs(gains.sum(axis=-1) - 1).max() < TOLERANCE


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_router_that_gives_no_number_is_told(wrong: float) -> None:
    logits = np.zeros((3, 5), np.float32)
    logits[1, 2] = wrong
    with np.errstate(invalid="ignore"):  # NumPy's, where JIT is off
        picks, _, status = routed(logits, 2)
    assert status == 1  # line 0, plus 1
    assert ((picks >= 0) & (picks < 5)).all()


def sorted_picks(picks: Array, number: int) -> tuple[Array, Array, list[list[int]]]:
    """Places [rows, chosen], pairs, and the active experts with first place and places."""
    work, (rows, chosen) = new_work(), picks.shape
    at, places = work.put(picks.astype(np.int32)), work.room(rows, chosen, **INTS)
    pairs, active = work.room(rows * chosen, **INTS), work.room(1 + 3 * number, **INTS)
    scratch = work.room(number, **INTS)
    run_line(
        made(experts.sort_kernel), experts.SORT, 1, weights=Arena(), work=work,
        table=new_table(scratch=scratch, **{str(NUM_ROWS): rows}), experts=number, chosen=chosen, picks=at,
        places=places, pairs=pairs, active=active,
    )  # fmt: skip
    num_active = work.get(active, 1, **INTS)[0]
    listed = work.get(active + 4, num_active, 3, **INTS).tolist()
    return work.get(places, rows, chosen, **INTS), work.get(pairs, rows * chosen, **INTS), listed


@settings(max_examples=30)
@given(st.integers(1, 20), st.integers(1, 4), st.integers(4, 9), st.integers(0, 99))
def test_every_pick_has_a_place_by_expert_row_and_rank(rows: int, chosen: int, number: int, seed: int) -> None:
    picks = np.array(Stream(seed, "picks").integers(rows * chosen, number)).reshape(rows, chosen)
    places, pairs, listed = sorted_picks(picks, number)
    order = np.argsort(picks.reshape(-1), kind="stable")
    assert pairs.tolist() == order.tolist()
    assert places.reshape(-1)[order].tolist() == list(range(rows * chosen))
    counts = np.bincount(picks.reshape(-1), minlength=number)
    starts = np.cumsum(counts) - counts
    assert listed == [[e, starts[e], counts[e]] for e in range(number) if counts[e]]


def test_rows_are_copied_to_their_places() -> None:
    picks = np.array(Stream(1, "picks").integers(12, 5)).reshape(6, 2)
    places, _, _ = sorted_picks(picks, 5)
    for size in (128, 44, 140):
        rows = Stream(size, "rows").raw(6 * size).astype(np.uint8).reshape(6, size)
        work = new_work()
        x, at, out = work.put(rows), work.put(places), work.room(12, size, dtype=np.uint8)
        run_line(
            made(experts.spread_kernel), experts.SPREAD, 6, weights=Arena(), work=work, table=new_table(), x=x,
            stride=size, row_bytes=size, chosen=2, places=at, out=out,
        )  # fmt: skip
        copied = work.get(out, 12, size, dtype=np.uint8)
        assert np.array_equal(copied[places], np.repeat(rows[:, None], 2, axis=1))


NUMBER, WIDTH, OUTPUTS = 4, 64, 40


def multiplied(x: Array, counts: list[int], weights_: Array, bias: Array | None, across: int) -> Array:
    """Rows [places, WIDTH], so many of each expert, times their experts' matrices f32 [NUMBER, OUTPUTS, WIDTH]."""
    weights, work = Arena(), new_work()
    panels = -(-OUTPUTS // 16)
    wide = np.zeros((NUMBER, panels * 16, WIDTH), np.float32)
    wide[:, :OUTPUTS] = weights_
    packed = np.ascontiguousarray(wide.reshape(NUMBER, panels, 16, WIDTH).swapaxes(2, 3))
    w = weights.put(packed)
    b = -1 if bias is None else weights.put(np.pad(bias, ((0, 0), (0, panels * 16 - OUTPUTS))))
    starts = np.cumsum(counts) - counts
    listed = [(e, starts[e], counts[e]) for e in range(NUMBER) if counts[e]]
    active = work.put(np.array([len(listed), *np.array(listed).reshape(-1)], np.int32))
    at, out = work.put(x), work.room(len(x), panels * 16)
    scratch = work.room(matmul.scratch_bytes(WIDTH), dtype=np.uint8)
    run_line(
        made(experts.expert_matmul_kernel, matmul.F32), experts.EMM, NUMBER * across, weights=weights, work=work,
        table=new_table(scratch=scratch), w=w, w_stride=packed[0].nbytes, panels=panels, width=WIDTH, x=at,
        x_stride=4 * WIDTH, out=out, out_stride=4 * panels * 16, bias=b, bias_stride=4 * panels * 16, adds=0,
        chunk_panels=-(-panels // across), active=active, experts=NUMBER, chosen=1,
    )  # fmt: skip
    return work.get(out, len(x), panels * 16)[:, :OUTPUTS]


@pytest.mark.parametrize("counts", [[3, 0, 1, 9], [0, 0, 17, 0], [1, 1, 1, 1]], ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
def test_each_row_meets_its_own_expert(counts: list[int], has_bias: bool) -> None:
    """Within rounding of f64, and to the byte what a row gets that is alone."""
    x = Stream(2, "x").normal((sum(counts), WIDTH))
    weights = Stream(2, "w").normal((NUMBER, OUTPUTS, WIDTH))
    bias = Stream(2, "bias").normal((NUMBER, OUTPUTS)) if has_bias else None
    own = np.repeat(np.arange(NUMBER), counts)
    expected = np.einsum("pk,pok->po", x.astype(np.float64), weights[own]) + (0 if bias is None else bias[own])
    found = multiplied(x, counts, weights, bias, 1)
    assert np.abs(found - expected).max() < 1e-4
    for across in (2, 3):
        assert np.array_equal(multiplied(x, counts, weights, bias, across), found)
    for row, expert in enumerate(own):
        alone = [int(e == expert) for e in range(NUMBER)]
        assert np.array_equal(multiplied(x[row : row + 1], alone, weights, bias, 1)[0], found[row])


@pytest.mark.parametrize("activation", ["silu", "swiglu_clamped"])
def test_activations(activation: str) -> None:
    work, width = new_work(), 40
    both = 4 * Stream(5, "both").normal((3, 2, 64))
    at, out, pairs = work.put(both), work.room(3, 64), work.put(np.arange(3, **INTS))
    kernel = made(experts.expert_activation_kernel, elementwise.ACTIVATIONS[activation], 0)
    run_line(
        kernel, experts.EACT, 3, weights=Arena(), work=work, table=new_table(), gate=at, up=at + 256, stride=512,
        width=width, segment=64, out=out, out_stride=256, pairs=pairs, chosen=1,
    )  # fmt: skip
    found = work.get(out, 3, 64)
    gate, up = both[:, 0, :width].astype(np.float64), both[:, 1, :width].astype(np.float64)
    if activation == "silu":
        expected = gate / (1 + np.exp(-gate)) * up
    else:
        gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
        expected = (up + 1) * gate / (1 + np.exp(-1.702 * gate))
        assert (np.abs(both[..., :width]) > 7).any()
    assert np.abs(found[:, :width] - expected).max() < 1e-4
    assert (found[:, width:] == 0).all()


@pytest.mark.parametrize("has_shared", [False, True])
def test_results_are_summed_by_rank(has_shared: bool) -> None:
    """To the bit: fused multiply-adds in the order of ranks, then the shared one's."""
    work, rows, chosen, width = new_work(), 3, 4, 32
    x, y = Stream(6, "x").normal((rows, width)), Stream(6, "y").normal((rows * chosen, width))
    gains, shared = Stream(6, "gains").normal((rows, chosen)), Stream(6, "shared").normal((rows, width))
    places = np.array([5, 0, 11, 3, 1, 2, 4, 6, 10, 9, 8, 7], np.int32).reshape(rows, chosen)
    at, y_at, gains_at, places_at = work.put(x), work.put(y), work.put(gains), work.put(places)
    shared_at = work.put(shared)
    run_line(
        made(experts.combine_kernel), experts.COMBINE, rows, weights=Arena(), work=work, table=new_table(), x=at,
        stride=4 * width, width=width, adds=1, chosen=chosen, places=places_at, gains=gains_at, y=y_at,
        y_stride=4 * width, shared=shared_at if has_shared else -1, shared_stride=4 * width, gate=-1, gate_stride=0,
    )  # fmt: skip
    total = np.zeros((rows, width), np.float32)
    for rank in range(chosen):
        total = fma(y[places[:, rank]], gains[:, rank : rank + 1], total)
    if has_shared:
        total = total + shared
    assert np.array_equal(work.get(at, rows, width), x + total)
