"""A layer of experts: which of them each row goes to, their matrices over these rows, and the sum of what they say.

A row's *picks* are its experts by rank, each with a *gain*. All picks of a pass, sorted by expert and then by row and
rank, get a *place* each: the rows are copied there, so that an expert's rows stand together and its matrices multiply
them as any matrix does (``kernels.matmul``). ``combine`` sums a row's results by rank. So nothing that a row gets
depends on who else is in the pass.

Lists in the work arena, int32: ``picks`` and ``places`` by row and rank; ``pairs``, which has for each place its row
times the number of ranks, plus the rank; ``active``: how many experts any row goes to, then for each in ascending order
(expert, first place, places).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvist.kernels.elementwise import activate_pair, exp, padded_width, place_of, quantise_groups, report, rows_of
from kvist.kernels.jit import SIGNATURE, inline, kernel
from kvist.kernels.layout import GROUP, LANES, NUM_ROWS, SCRATCH, SCRATCH_STRIDE, fields, padded
from kvist.kernels.matmul import PairWays, Task, Ways, inner_of, multiply_panels, multiply_singly, num_tile_rows
from kvist.kernels.simd import (
    add,
    div,
    first_lane,
    fma,
    get_f32,
    get_i32,
    keep_lanes,
    load_f32,
    load_i32,
    max_lanes,
    maximum,
    put_f32,
    put_i32,
    splat_f32,
    static,
    store,
    sub,
    sum_lanes,
    value,
    zero_f32,
)
from kvist.kernels.spans import LOWEST

F = np.float32
ZERO, ONE, TINY, TAKEN = F(0), F(1), F(1e-20), F(-np.inf)

SOFTMAX, SIGMOID, CHOSEN = 0, 1, 2
SCORES = {"softmax": SOFTMAX, "sigmoid": SIGMOID, "chosen": CHOSEN}
"""What experts are chosen by: the softmax of their logits, each one's sigmoid, or the logits, with a softmax of those
that were chosen."""

ROUTE = fields("logits stride experts chosen scores is_normed scale bias groups kept_groups group_best picks gains")
SORT = fields("experts chosen picks places pairs active")
SPREAD = fields("x stride row_bytes chosen places out")
EMM = fields(
    "w w_stride panels width x x_stride out out_stride bias bias_stride adds chunk_panels active experts chosen"
)
EACT = fields("gate up stride width segment out out_stride pairs chosen")
COMBINE = fields("x stride width adds chosen places gains y y_stride shared shared_stride gate gate_stride")


# ---- Which experts a row goes to --------------------------------------------------------------------------------


@inline
def write_softmax(work, logits, count, out):
    """Write the softmax of ``count`` logits; lanes past them get 0."""
    largest = splat_f32(LOWEST, LANES)
    for i in range(0, count, LANES):
        largest = maximum(keep_lanes(load_f32(work, logits + i * 4, LANES), i, 0, count, LOWEST), largest)
    top, total = splat_f32(max_lanes(largest), LANES), zero_f32(1, LANES)
    for i in range(0, count, LANES):
        p = keep_lanes(exp(sub(load_f32(work, logits + i * 4, LANES), top)), i, 0, count, ZERO)
        total = add(total, p)
        store(work, out + i * 4, p)
    whole = splat_f32(sum_lanes(total), LANES)
    for i in range(0, count, LANES):
        store(work, out + i * 4, div(load_f32(work, out + i * 4, LANES), whole))


@inline
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    one = splat_f32(ONE, LANES)
    return div(one, add(one, exp(sub(splat_f32(ZERO, LANES), x))))


@inline
def write_scores(work, logits, count, out, scores, place):
    """Write what experts are chosen by. Sets the status to ``place`` where a logit is NaN or infinite."""
    check = zero_f32(1, LANES)
    for i in range(0, count, LANES):
        check = fma(load_f32(work, logits + i * 4, LANES), splat_f32(ZERO, LANES), check)
    if sum_lanes(check) != ZERO:
        report(work, place)
    if scores == SOFTMAX:
        write_softmax(work, logits, count, out)
        return
    for i in range(0, count, LANES):
        x = load_f32(work, logits + i * 4, LANES)
        store(work, out + i * 4, sigmoid(x) if scores == SIGMOID else x)


@inline
def take_largest(work, at, count):
    """The number of the largest of ``count`` floats, the lower one of equals; what is taken isn't found again."""
    best, number = TAKEN, 0
    for i in range(count):
        x = get_f32(work, at + i * 4)
        if x > best:
            best, number = x, i
    put_f32(work, at + number * 4, TAKEN)
    return number


@inline
def sum_of_best(work, at, count, how_many):
    """The sum of the largest one or two of some floats."""
    first, second = TAKEN, TAKEN
    for i in range(count):
        x = get_f32(work, at + i * 4)
        if x > first:
            first, second = x, first
        elif x > second:
            second = x
    return first + second if how_many == 2 else first


@inline
def drop_groups(work, at, experts, groups, kept, best, sums):
    """Leave the experts of the ``kept`` groups whose best ``best`` add up to most (DeepSeek-V3, section 2.1.2)."""
    size = experts // groups
    for g in range(groups):
        put_f32(work, sums + g * 4, sum_of_best(work, at + g * size * 4, size, best))
    for _ in range(kept):
        take_largest(work, sums, groups)
    for g in range(groups):
        if get_f32(work, sums + g * 4) != TAKEN:
            for i in range(g * size, (g + 1) * size):
                put_f32(work, at + i * 4, TAKEN)


@inline
def write_gains(work, gains, chosen, scores, is_normed, scale):
    """From the scores of a row's experts to what each one's result is multiplied with."""
    total, top = ZERO, splat_f32(get_f32(work, gains), LANES)
    for r in range(chosen):
        gain = get_f32(work, gains + r * 4)
        if scores == CHOSEN:
            gain = first_lane(exp(sub(splat_f32(gain, LANES), top)))
        total += gain
        put_f32(work, gains + r * 4, gain)
    for r in range(chosen):
        gain = get_f32(work, gains + r * 4)
        if scores == CHOSEN or is_normed:
            gain = gain / (total + TINY)
        put_f32(work, gains + r * 4, gain * scale)


@inline
def route(row, thread, line, program, table, weights, work):
    """A row's logits become picks and gains, by rank."""
    experts, chosen, kind = program[line, ROUTE.experts], program[line, ROUTE.chosen], program[line, ROUTE.scores]
    scores = table[SCRATCH] + thread * table[SCRATCH_STRIDE]
    ranked = scores + (experts + LANES - 1) // LANES * LANES * 4
    logits = program[line, ROUTE.logits] + row * program[line, ROUTE.stride]
    write_scores(work, logits, experts, scores, kind, place_of(line, row))
    bias, groups = program[line, ROUTE.bias], program[line, ROUTE.groups]
    for i in range(0, experts, LANES):
        x = load_f32(work, scores + i * 4, LANES)
        store(work, ranked + i * 4, add(x, load_f32(weights, bias + i * 4, LANES)) if bias >= 0 else x)
    if groups > 1:
        kept, best = program[line, ROUTE.kept_groups], program[line, ROUTE.group_best]
        drop_groups(work, ranked, experts, groups, kept, best, ranked + (ranked - scores))
    picks, gains = program[line, ROUTE.picks] + row * chosen * 4, program[line, ROUTE.gains] + row * chosen * 4
    for r in range(chosen):
        number = take_largest(work, ranked, experts)
        put_i32(work, picks + r * 4, np.int32(number))
        put_f32(work, gains + r * 4, get_f32(work, scores + number * 4))
    write_gains(work, gains, chosen, kind, program[line, ROUTE.is_normed], get_f32(weights, program[line, ROUTE.scale]))


def route_kernel() -> Any:
    """The kernel that chooses experts; a chunk is some rows."""

    @kernel(SIGNATURE)
    def run_route(chunk, thread, line, program, table, weights, cache, work):
        first, end = rows_of(chunk, table)
        for row in range(first, end):
            route(row, thread, line, program, table, weights, work)

    return run_route


def route_scratch_bytes(experts: int) -> int:
    """Scratch that one thread needs to choose among ``experts``."""
    return 3 * 4 * padded(experts, LANES)


# ---- Rows to their experts --------------------------------------------------------------------------------------


@inline
def sort(thread, line, program, table, work):
    """Give every pick of the pass its place: a counting sort."""
    experts, chosen = program[line, SORT.experts], program[line, SORT.chosen]
    picks, places, pairs = program[line, SORT.picks], program[line, SORT.places], program[line, SORT.pairs]
    active, counts = program[line, SORT.active], table[SCRATCH] + thread * table[SCRATCH_STRIDE]
    num_pairs = table[NUM_ROWS] * chosen
    for e in range(experts):
        put_i32(work, counts + e * 4, np.int32(0))
    for pair in range(num_pairs):
        at = counts + get_i32(work, picks + pair * 4) * 4
        put_i32(work, at, np.int32(get_i32(work, at) + 1))
    start, num_active = 0, 0
    for e in range(experts):
        count = get_i32(work, counts + e * 4)
        if count > 0:
            entry = active + 4 + num_active * 12
            put_i32(work, entry, np.int32(e))
            put_i32(work, entry + 4, np.int32(start))
            put_i32(work, entry + 8, np.int32(count))
            num_active += 1
        put_i32(work, counts + e * 4, np.int32(start))
        start += count
    put_i32(work, active, np.int32(num_active))
    for pair in range(num_pairs):
        at = counts + get_i32(work, picks + pair * 4) * 4
        place = get_i32(work, at)
        put_i32(work, places + pair * 4, np.int32(place))
        put_i32(work, pairs + place * 4, np.int32(pair))
        put_i32(work, at, np.int32(place + 1))


def sort_kernel() -> Any:
    """The kernel that gives picks their places; one chunk."""

    @kernel(SIGNATURE)
    def run_sort(chunk, thread, line, program, table, weights, cache, work):
        sort(thread, line, program, table, work)

    return run_sort


@inline
def spread(row, line, program, work):
    """A row is copied to the places of its picks."""
    size, chosen = program[line, SPREAD.row_bytes], program[line, SPREAD.chosen]
    x = program[line, SPREAD.x] + row * program[line, SPREAD.stride]
    for r in range(chosen):
        place = get_i32(work, program[line, SPREAD.places] + (row * chosen + r) * 4)
        out = program[line, SPREAD.out] + place * size
        whole = size // 64 * 64
        for i in range(0, whole, 64):
            store(work, out + i, load_i32(work, x + i, LANES))
        for i in range(whole, size, 4):
            put_i32(work, out + i, get_i32(work, x + i))


def spread_kernel() -> Any:
    """The kernel that copies rows to their experts; a chunk is some of them."""

    @kernel(SIGNATURE)
    def run_spread(chunk, thread, line, program, table, weights, cache, work):
        first, end = rows_of(chunk, table)
        for row in range(first, end):
            spread(row, line, program, work)

    return run_spread


@inline
def number_at(work, at):
    """An int32 as the number that offsets are."""
    return np.int64(get_i32(work, at))


# ---- What experts compute ---------------------------------------------------------------------------------------


@inline
def expert_matmul(chunk, thread, line, program, table, weights, work, multiply, ways, pairs):
    """A chunk is some panels of one active expert, times all its rows; there may be fewer active ones than chunks."""
    panels, chunk_panels = program[line, EMM.panels], program[line, EMM.chunk_panels]
    across = (panels + chunk_panels - 1) // chunk_panels
    number, active = chunk // across, program[line, EMM.active]
    if number >= get_i32(work, active):
        return
    entry = active + 4 + number * 12
    expert, start, count = number_at(work, entry), number_at(work, entry + 4), number_at(work, entry + 8)
    bias = program[line, EMM.bias]
    task = Task(
        start,
        start + count,
        program[line, EMM.width],
        program[line, EMM.x],
        program[line, EMM.x_stride],
        program[line, EMM.out],
        program[line, EMM.out_stride],
        bias + expert * program[line, EMM.bias_stride] if bias >= 0 else bias,
        program[line, EMM.adds],
    )
    scratch, w = (
        table[SCRATCH] + thread * table[SCRATCH_STRIDE],
        program[line, EMM.w] + expert * program[line, EMM.w_stride],
    )
    p = chunk % across * chunk_panels
    end = min(panels, p + chunk_panels)
    multiply(weights, work, scratch, w, panels, p, end, chunk_panels, task, ways, pairs)


def expert_matmul_kernel(form: int) -> Any:
    """The kernel that multiplies experts' rows with their weights of one form."""
    rows, pair_rows, fewer, least = num_tile_rows(form)
    dots, pair, source = inner_of(form)
    multiply = multiply_panels if pair_rows else multiply_singly

    @kernel(SIGNATURE)
    def run_expert_matmul(chunk, thread, line, program, table, weights, cache, work):
        ways = Ways(static(form), static(rows), dots)
        pairs = PairWays(static(form), static(pair_rows), static(fewer), static(least), pair, source)
        expert_matmul(chunk, thread, line, program, table, weights, work, multiply, ways, pairs)

    return run_expert_matmul


@inline
def expert_activation(chunk, thread, line, program, table, work, kind, is_quantised):
    """A chunk is a segment of one place: act(gate) times up, as f32 or quantised."""
    width, segment = program[line, EACT.width], program[line, EACT.segment]
    whole = padded_width(width)
    segments = (whole + segment - 1) // segment
    place, first = chunk // segments, chunk % segments * segment
    end = min(first + segment, whole)
    gate = program[line, EACT.gate] + place * program[line, EACT.stride]
    up = program[line, EACT.up] + place * program[line, EACT.stride]
    out = program[line, EACT.out] + place * program[line, EACT.out_stride]
    to = table[SCRATCH] + thread * table[SCRATCH_STRIDE] if value(is_quantised) else out
    for i in range(first, end, LANES):
        x = keep_lanes(load_f32(work, gate + i * 4, LANES), i, 0, width, ZERO)
        other = keep_lanes(load_f32(work, up + i * 4, LANES), i, 0, width, ZERO)
        store(work, to + i * 4, activate_pair(x, other, kind))
    if value(is_quantised):
        row = get_i32(work, program[line, EACT.pairs] + place * 4) // program[line, EACT.chosen]
        quantise_groups(work, to, first // GROUP, end // GROUP, whole, out, place_of(line, np.int64(row)))


def expert_activation_kernel(kind: int, is_quantised: bool) -> Any:
    """The kernel of experts' activation, gated; a chunk is a segment of a place (a multiple of 32 columns)."""

    @kernel(SIGNATURE)
    def run_expert_activation(chunk, thread, line, program, table, weights, cache, work):
        expert_activation(chunk, thread, line, program, table, work, static(kind), static(is_quantised))

    return run_expert_activation


@inline
def combine(row, line, program, work):
    """What a row's experts say, times their gains, is summed by rank, and added to x if it ``adds``.

    A shared expert's result comes last, times the sigmoid of its gate where it has one.
    """
    chosen, width, shared = program[line, COMBINE.chosen], program[line, COMBINE.width], program[line, COMBINE.shared]
    places = program[line, COMBINE.places] + row * chosen * 4
    gains = program[line, COMBINE.gains] + row * chosen * 4
    x = program[line, COMBINE.x] + row * program[line, COMBINE.stride]
    y, stride = program[line, COMBINE.y], program[line, COMBINE.y_stride]
    gate = splat_f32(ONE, LANES)
    if program[line, COMBINE.gate] >= 0:
        at = program[line, COMBINE.gate] + row * program[line, COMBINE.gate_stride]
        gate = sigmoid(splat_f32(get_f32(work, at), LANES))
    for i in range(0, width, LANES):
        total = zero_f32(1, LANES)
        for r in range(chosen):
            gain = splat_f32(get_f32(work, gains + r * 4), LANES)
            at = y + get_i32(work, places + r * 4) * stride + i * 4
            total = fma(load_f32(work, at, LANES), gain, total)
        if shared >= 0:
            at = shared + row * program[line, COMBINE.shared_stride] + i * 4
            total = fma(load_f32(work, at, LANES), gate, total)
        if program[line, COMBINE.adds]:
            total = add(load_f32(work, x + i * 4, LANES), total)
        store(work, x + i * 4, total)


def combine_kernel() -> Any:
    """The kernel that adds experts' results up; a chunk is some rows."""

    @kernel(SIGNATURE)
    def run_combine(chunk, thread, line, program, table, weights, cache, work):
        first, end = rows_of(chunk, table)
        for row in range(first, end):
            combine(row, line, program, work)

    return run_combine
