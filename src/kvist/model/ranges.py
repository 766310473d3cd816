"""Which bytes of the arenas each line of a program may read or write, and that they are there.

A compiled out-of-range read is silent, so every line is checked when a program is written, for passes of the most rows.
This reads the finished lines, not what they were written from: a table of extents by kernel, in the kernels' own terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvist.kernels import (
    attention,
    blocks,
    caps,
    elementwise,
    embedding,
    experts,
    gated,
    latent,
    matmul,
    peaks,
    residual,
    rotary,
    spans,
    tally,
)
from kvist.kernels.layout import (
    FIRST_FIELD,
    GROUP,
    GROUP_BYTES,
    KERNEL,
    LANES,
    PANEL_ROWS,
    padded,
    quantised_row_bytes,
)
from kvist.model.program import Key, Program
from kvist.spec.cache import BLOCK_TOKENS, head_key_bytes, head_value_bytes

FORM_NAMES = {number: name for name, number in matmul.FORMS.items()}
CODEC_NAMES = {number: name for name, number in spans.CODECS.items()}


@dataclass(frozen=True)
class Limits:
    """What a program may count on: bytes of the arenas, and the most that a pass and the model hold.

    ``work_bytes``: with one row of logits, each of which has ``logits_stride`` bytes. ``scratch_bytes``: a
    thread's. ``tile_rows``: rows of an attention tile. ``num_blocks``: of the cache, by layer group.
    """

    weights_bytes: int
    cache_bytes: int
    work_bytes: int
    scratch_bytes: int
    logits_stride: int
    num_rows: int
    num_split_rows: int
    num_spans: int
    tile_rows: int
    num_blocks: tuple[int, ...]
    vocab_size: int
    context_length: int


@dataclass(frozen=True)
class Extent:
    """``num_bytes`` from ``start`` on, in the arena "weights", "cache", "work" or "scratch" (of one thread)."""

    arena: str
    start: int
    num_bytes: int


Columns = Any
Extents = Iterator[Extent]


def check(program: Program, kernels: list[Key], limits: Limits) -> None:
    """Assert that no line reaches beyond an arena; ``kernels`` are the program's, by number."""
    room = {
        "weights": limits.weights_bytes,
        "cache": limits.cache_bytes,
        "work": limits.work_bytes,
        "scratch": limits.scratch_bytes,
    }
    for number, line in enumerate(program.table.tolist()):
        make, constants = kernels[line[KERNEL]]
        columns, extents = EXTENTS[make]
        at = type(columns)(*line[FIRST_FIELD : FIRST_FIELD + len(columns)])
        for extent in extents(at, constants, limits):
            end = extent.start + extent.num_bytes
            assert 0 <= extent.start <= end <= room[extent.arena], (make.__name__, number, extent, room[extent.arena])


def _rows(start: int, stride: int, row_bytes: int, num_rows: int) -> Extent:
    """Rows of ``row_bytes``, ``stride`` apart, in the work arena."""
    assert 0 <= row_bytes <= stride, (row_bytes, stride)
    return Extent("work", start, (num_rows - 1) * stride + row_bytes)


def _activations(width: int, is_quantised: int) -> int:
    """Bytes of a row that a matrix reads."""
    return quantised_row_bytes(padded(width)) if is_quantised else padded(width) * 4


def _panel_bytes(width: int, form: int) -> int:
    return padded(width) // GROUP * GROUP_BYTES[FORM_NAMES[form]]


def _embedding(at: Columns, constants: tuple[int, ...], limits: Limits) -> Extents:
    (form,) = constants
    num_panels = -(-limits.vocab_size // PANEL_ROWS)
    yield Extent("weights", at.w, num_panels * _panel_bytes(at.padded, form))
    if at.positions >= 0:
        yield Extent("weights", at.positions, limits.context_length * at.width * 4)
    yield Extent("weights", at.scale, 4)
    yield _rows(at.out, at.out_stride, at.width * 4, limits.num_rows)


def _rotary(at: Columns, _constants: tuple[int, ...], limits: Limits) -> Extents:
    yield Extent("weights", at.frequencies, at.count * 4)
    yield Extent("weights", at.factor, 4)
    yield _rows(at.out, at.out_stride, at.count * 8, limits.num_rows)
    yield _rows(at.sink_out, at.out_stride, at.count * 8, limits.num_rows)


def _norm(at: Columns, constants: tuple[int, ...], limits: Limits) -> Extents:
    kind, is_quantised = constants
    row_bytes = padded(at.width) * 4
    yield from _norm_weights(at, kind)
    yield _rows(at.x, at.stride, row_bytes, limits.num_rows)
    yield _rows(at.out, at.out_stride, _activations(at.width, is_quantised), limits.num_rows)
    if is_quantised:
        yield Extent("scratch", 0, row_bytes)


def _norm_weights(at: Columns, kind: int) -> Extents:
    row_bytes = padded(at.width) * 4
    if kind != elementwise.NONE:
        yield Extent("weights", at.weight, row_bytes)
    yield Extent("weights", at.eps, 4)
    if at.bias >= 0:
        yield Extent("weights", at.bias, row_bytes)


def _residual(at: Columns, constants: tuple[int, ...], limits: Limits) -> Extents:
    (kind,) = constants
    row_bytes = padded(at.width) * 4
    yield from _norm_weights(at, kind)
    yield Extent("weights", at.scale, 4)
    yield _rows(at.x, at.stride, row_bytes, limits.num_rows)
    yield _rows(at.branch, at.branch_stride, row_bytes, limits.num_rows)
    yield Extent("scratch", 0, row_bytes)


def _parts(at: Columns, _constants: tuple[int, ...], limits: Limits) -> Extents:
    assert at.width % LANES == 0, at.width
    yield Extent("weights", at.weight, (at.parts - 1) * at.weight_stride + at.width * 4)
    yield Extent("weights", at.eps, 4)
    yield _rows(at.x, at.stride, at.parts * at.width * 4, limits.num_rows)


def _cap(at: Columns, _constants: tuple[int, ...], limits: Limits) -> Extents:
    assert at.stride == limits.logits_stride, (at.stride, limits.logits_stride)
    yield Extent("weights", at.cap, 4)
    yield _rows(at.x, at.stride, padded(at.width, LANES) * 4, 1)


def _peaks(at: Columns, _constants: tuple[int, ...], limits: Limits) -> Extents:
    assert at.stride == at.out_stride == limits.logits_stride, (at.stride, at.out_stride, limits.logits_stride)
    assert at.segments * peaks.SEGMENT >= at.width, (at.segments, at.width)
    yield _rows(at.x, at.stride, padded(at.width, LANES) * 4, 1)
    yield _rows(at.out, at.out_stride, at.segments * 4, 1)


def _matmul(at: Columns, constants: tuple[int, ...], limits: Limits) -> Extents:
    (form,) = constants
    yield Extent("weights", at.w, at.panels * _panel_bytes(at.width, form))
    if at.bias >= 0:
        yield Extent("weights", at.bias, at.panels * PANEL_ROWS * 4)
    yield Extent("scratch", 0, matmul.scratch_bytes(at.width))
    is_quantised = FORM_NAMES[form] in matmul.QUANTISED
    yield _rows(at.x, at.x_stride, _activations(at.width, is_quantised), limits.num_rows)
    assert not at.is_last or at.out_stride == limits.logits_stride, (at.out_stride, limits.logits_stride)
    yield _rows(at.out, at.out_stride, at.panels * PANEL_ROWS * 4, 1 if at.is_last else limits.num_rows)


def _gated(at: Columns, constants: tuple[int, ...], limits: Limits) -> Extents:
    form, _ = constants
    assert FORM_NAMES[form] in matmul.QUANTISED, form
    assert at.panels % 2 == 0, at.panels
    yield Extent("weights", at.w, 2 * at.panels * _panel_bytes(at.width, form))
    if at.bias >= 0:
        yield Extent("weights", at.bias, 2 * at.panels * PANEL_ROWS * 4)
    yield Extent("scratch", 0, gated.scratch_bytes(at.width, limits.num_rows))
    yield _rows(at.x, at.x_stride, _activations(at.width, is_quantised=1), limits.num_rows)
    yield _rows(at.out, at.out_stride, _activations(at.panels * PANEL_ROWS, is_quantised=1), limits.num_rows)


def _stored(at: Columns, dim: int, k_codec: int, v_codec: int, limits: Limits) -> Extents:
    """All blocks of a layer's keys and values; of a latent layer the keys."""
    value_bytes = 0 if v_codec == spans.CODEC_NONE else head_value_bytes(CODEC_NAMES[v_codec], dim)
    for start, head, block, num_bytes in (
        (at.k, at.k_head, at.k_block, head_key_bytes(CODEC_NAMES[k_codec], dim)),
        (at.v, at.v_head, at.v_block, value_bytes),
    ):
        assert BLOCK_TOKENS * num_bytes <= block, (dim, num_bytes, block)
        yield Extent("cache", start, (at.kv_heads - 1) * head + limits.num_blocks[at.group] * block)


def _queries(start: int, at: Columns, dim: int, limits: Limits) -> Extent:
    return Extent("work", start, (at.kv_heads - 1) * at.q_head + limits.num_rows * at.share * dim * 4)


def _append(at: Columns, constants: tuple[int, ...], limits: Limits) -> Extents:
    dim, k_codec, v_codec = constants
    assert 0 <= at.turned <= dim and at.turned % 2 == 0, (at.turned, dim)  # else heads, of q and of k, are left
    yield from _stored(at, dim, k_codec, v_codec, limits)
    yield _queries(at.q, at, dim, limits)
    yield _queries(at.sink_q, at, dim, limits)
    yield _rows(at.qkv, at.qkv_stride, at.kv_heads * (at.share + 2) * dim * 4, limits.num_rows)
    if at.turned:
        yield _rows(at.angles, at.angles_stride, at.turned * 4, limits.num_rows)
        yield _rows(at.sink_angles, at.angles_stride, at.turned * 4, limits.num_rows)
    for norm in (at.q_norm, at.k_norm):
        if norm >= 0:
            yield Extent("weights", norm, dim * 4)
    yield Extent("weights", at.scale, 4)
    yield Extent("weights", at.eps, 4)
    yield Extent("scratch", 0, 2 * dim * 4)


def _attended(at: Columns, dim: int, heads: int, limits: Limits) -> Extents:
    """Records of spans that are attended apart, results, and these quantised."""
    if at.nothing >= 0:
        yield Extent("weights", at.nothing, heads * 4)
    record = attention.num_record_bytes(dim)
    yield Extent("work", at.parts, heads * (limits.num_spans + 1) * limits.num_split_rows * record)
    yield _rows(at.out, at.out_stride, max(heads * dim, padded(at.width)) * 4, limits.num_rows)
    if at.quantised >= 0:
        yield _rows(at.quantised, at.quantised_stride, _activations(at.width, is_quantised=1), limits.num_rows)


def _attention(at: Columns, constants: tuple[int, ...], limits: Limits) -> Extents:
    dim, k_codec, v_codec, share, _ = constants
    yield from _stored(at, dim, k_codec, v_codec, limits)
    if at.cap >= 0:
        yield Extent("weights", at.cap, 4)
    yield _queries(at.q, at, dim, limits)
    yield _queries(at.sink_q, at, dim, limits)
    yield from _attended(at, dim, at.kv_heads * share, limits)
    yield Extent("scratch", 0, attention.scratch_bytes(dim, limits.tile_rows * share))


def _tally(at: Columns, constants: tuple[int, ...], limits: Limits) -> Extents:
    dim, k_codec, v_codec, share, _ = constants
    yield from _stored(at, dim, k_codec, v_codec, limits)
    if at.cap >= 0:
        yield Extent("weights", at.cap, 4)
    yield _queries(at.q, at, dim, limits)
    yield Extent("scratch", 0, tally.scratch_bytes(limits.num_spans, share))


def _finish(at: Columns, constants: tuple[int, ...], limits: Limits) -> Extents:
    dim, _ = constants
    yield from _attended(at, dim, at.heads, limits)
    yield Extent("scratch", 0, attention.num_record_bytes(dim))


def _latent(at: Columns, constants: tuple[int, ...], limits: Limits) -> Extents:
    """Queries that are ended, latents that are read, and keys that are written."""
    dim, rank, k_codec = constants
    assert rank + at.turned == dim and at.own + at.turned * 4 <= at.query_head, (rank, at.turned, dim, at.own)
    yield _blocks_of_latents(at, dim, k_codec, limits)
    yield _queries(at.q, at, dim, limits)
    yield _queries(at.sink_q, at, dim, limits)
    yield _rows(at.queries, at.queries_stride, at.kv_heads * at.share * at.query_head, limits.num_rows)
    yield _rows(at.latents, at.latents_stride, dim * 4, limits.num_rows)
    yield _rows(at.angles, at.angles_stride, at.turned * 4, limits.num_rows)
    yield _rows(at.sink_angles, at.angles_stride, at.turned * 4, limits.num_rows)
    yield Extent("weights", at.norm, rank * 4)
    yield Extent("weights", at.scale, 4)
    yield Extent("weights", at.eps, 4)
    yield Extent("scratch", 0, latent.scratch_bytes(dim))


def _blocks_of_latents(at: Columns, dim: int, k_codec: int, limits: Limits) -> Extent:
    num_bytes = head_key_bytes(CODEC_NAMES[k_codec], dim)
    assert BLOCK_TOKENS * num_bytes <= at.k_block, (dim, num_bytes, at.k_block)
    return Extent("cache", at.k, limits.num_blocks[at.group] * at.k_block)


def _latent_attention(at: Columns, constants: tuple[int, ...], limits: Limits) -> Extents:
    dim, rank, k_codec, share = constants
    assert at.k_head == 0 and at.share == share, (at.k_head, at.share, share)
    yield _blocks_of_latents(at, dim, k_codec, limits)
    yield _queries(at.q, at, dim, limits)
    yield _queries(at.sink_q, at, dim, limits)
    yield from _attended(at, rank, at.kv_heads * share, limits)
    yield Extent("scratch", 0, attention.scratch_bytes(rank, limits.tile_rows * share))


def _heads(at: Columns, constants: tuple[int, ...], limits: Limits) -> Extents:
    """Each head's columns, its matrix, and where it writes."""
    (form,) = constants
    assert at.heads % at.share == 0, (at.heads, at.share)
    yield Extent("weights", at.w, at.heads * at.panels * _panel_bytes(at.width, form))
    yield _rows(at.x, at.x_stride, (at.heads - 1) * at.x_head + at.width * 4, limits.num_rows)
    row_bytes = (at.share - 1) * at.out_inner + at.panels * PANEL_ROWS * 4
    written = _rows(at.out, at.out_stride, row_bytes, limits.num_rows)
    yield Extent("work", written.start, (at.heads // at.share - 1) * at.out_outer + written.num_bytes)


def _quantised_rows(at: Columns, _constants: tuple[int, ...], limits: Limits) -> Extents:
    yield _rows(at.x, at.stride, at.width * 4, limits.num_rows)
    yield _rows(at.out, at.out_stride, quantised_row_bytes(at.width), limits.num_rows)


def _activation(at: Columns, constants: tuple[int, ...], limits: Limits) -> Extents:
    _, is_quantised = constants
    row_bytes = padded(at.width) * 4
    yield _rows(at.gate, at.stride, row_bytes, limits.num_rows)
    if at.up >= 0:
        yield _rows(at.up, at.stride, row_bytes, limits.num_rows)
    yield _rows(at.out, at.out_stride, _activations(at.width, is_quantised), limits.num_rows)
    if is_quantised:
        yield Extent("scratch", 0, row_bytes)


def _pairs(start: int, at: Columns, limits: Limits) -> Extent:
    """A list with a number for each rank of each row."""
    return Extent("work", start, limits.num_rows * at.chosen * 4)


def _places(start: int, stride: int, row_bytes: int, at: Columns, limits: Limits) -> Extent:
    """A row for each rank of each row."""
    return _rows(start, stride, row_bytes, limits.num_rows * at.chosen)


def _route(at: Columns, _constants: tuple[int, ...], limits: Limits) -> Extents:
    assert 1 <= at.kept_groups <= at.groups and at.experts % at.groups == 0, (at.experts, at.groups, at.kept_groups)
    assert 1 <= at.chosen <= at.experts // at.groups * at.kept_groups, (at.chosen, at.experts, at.kept_groups)
    row_bytes = padded(at.experts, PANEL_ROWS) * 4
    yield _rows(at.logits, at.stride, row_bytes, limits.num_rows)
    yield Extent("weights", at.scale, 4)
    if at.bias >= 0:
        yield Extent("weights", at.bias, row_bytes)
    yield _pairs(at.picks, at, limits)
    yield _pairs(at.gains, at, limits)
    yield Extent("scratch", 0, experts.route_scratch_bytes(at.experts))


def _active(at: Columns) -> Extent:
    return Extent("work", at.active, 4 + 12 * at.experts)


def _sort(at: Columns, _constants: tuple[int, ...], limits: Limits) -> Extents:
    for start in (at.picks, at.places, at.pairs):
        yield _pairs(start, at, limits)
    yield _active(at)
    yield Extent("scratch", 0, 4 * at.experts)


def _spread(at: Columns, _constants: tuple[int, ...], limits: Limits) -> Extents:
    yield _rows(at.x, at.stride, at.row_bytes, limits.num_rows)
    yield _pairs(at.places, at, limits)
    yield _places(at.out, at.row_bytes, at.row_bytes, at, limits)


def _expert_matmul(at: Columns, constants: tuple[int, ...], limits: Limits) -> Extents:
    (form,) = constants
    assert at.experts == 1 or at.panels * _panel_bytes(at.width, form) <= at.w_stride, (at.panels, at.w_stride)
    yield Extent("weights", at.w, (at.experts - 1) * at.w_stride + at.panels * _panel_bytes(at.width, form))
    if at.bias >= 0:
        yield Extent("weights", at.bias, (at.experts - 1) * at.bias_stride + at.panels * PANEL_ROWS * 4)
    is_quantised = FORM_NAMES[form] in matmul.QUANTISED
    yield _places(at.x, at.x_stride, _activations(at.width, is_quantised), at, limits)
    yield _places(at.out, at.out_stride, at.panels * PANEL_ROWS * 4, at, limits)
    yield _active(at)
    yield Extent("scratch", 0, matmul.scratch_bytes(at.width))


def _expert_activation(at: Columns, constants: tuple[int, ...], limits: Limits) -> Extents:
    _, is_quantised = constants
    row_bytes = padded(at.width) * 4
    yield _places(at.gate, at.stride, row_bytes, at, limits)
    yield _places(at.up, at.stride, row_bytes, at, limits)
    yield _places(at.out, at.out_stride, _activations(at.width, is_quantised), at, limits)
    yield _pairs(at.pairs, at, limits)
    if is_quantised:
        yield Extent("scratch", 0, row_bytes)


def _combine(at: Columns, _constants: tuple[int, ...], limits: Limits) -> Extents:
    row_bytes = padded(at.width, PANEL_ROWS) * 4
    yield _rows(at.x, at.stride, row_bytes, limits.num_rows)
    yield _pairs(at.places, at, limits)
    yield _pairs(at.gains, at, limits)
    yield _places(at.y, at.y_stride, row_bytes, at, limits)
    if at.shared >= 0:
        yield _rows(at.shared, at.shared_stride, row_bytes, limits.num_rows)
    if at.gate >= 0:
        yield _rows(at.gate, at.gate_stride, 4, limits.num_rows)


EXTENTS: Mapping[Callable[..., Any], tuple[Columns, Callable[[Columns, tuple[int, ...], Limits], Extents]]] = {
    embedding.embedding_kernel: (embedding.EM, _embedding),
    rotary.rotary_kernel: (rotary.ROPE, _rotary),
    elementwise.norm_kernel: (elementwise.NORM, _norm),
    residual.residual_kernel: (residual.RES, _residual),
    residual.parts_kernel: (residual.PART, _parts),
    caps.cap_kernel: (caps.CAP, _cap),
    peaks.peaks_kernel: (peaks.PEAKS, _peaks),
    matmul.matmul_kernel: (matmul.MM, _matmul),
    gated.gated_kernel: (gated.GATED, _gated),
    blocks.append_kernel: (blocks.AP, _append),
    attention.attention_kernel: (attention.AT, _attention),
    tally.tally_kernel: (tally.TALLY, _tally),
    attention.finish_kernel: (attention.FIN, _finish),
    elementwise.activation_kernel: (elementwise.ACT, _activation),
    experts.route_kernel: (experts.ROUTE, _route),
    experts.sort_kernel: (experts.SORT, _sort),
    experts.spread_kernel: (experts.SPREAD, _spread),
    experts.expert_matmul_kernel: (experts.EMM, _expert_matmul),
    experts.expert_activation_kernel: (experts.EACT, _expert_activation),
    experts.combine_kernel: (experts.COMBINE, _combine),
    latent.latent_append_kernel: (latent.LATENT, _latent),
    latent.latent_attention_kernel: (attention.AT, _latent_attention),
    latent.heads_kernel: (latent.HEADS, _heads),
    latent.rows_kernel: (latent.ROWS, _quantised_rows),
}
"""For each kernel its columns, and what a line of it touches."""
