"""The forward pass as a program: one line an operation, written once for a model, a cache and a number of rows.

What changes from pass to pass are the counts of chunks, which are linear in the pass's numbers, and the table. Every line's
places are checked against the arenas when it is written, since a compiled out-of-range read is silent.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kvist.cache.kv_cache import KvCache
from kvist.cache.store import LayerPlace
from kvist.kernels import attention, blocks, elementwise, embedding, jit, matmul, rotary
from kvist.kernels.layout import (
    CHUNKS,
    CONTROL_HEAD,
    COUNTERS,
    FIELDS,
    FIRST_FIELD,
    GROUP,
    HAS_BARRIER,
    KERNEL,
    WORK_HEAD,
    padded,
    quantised_row_bytes,
)
from kvist.model.families import DecoderSpec
from kvist.model.layers import LayerWeights, ModelWeights, Norm, Placed
from kvist.model.weights import Matrix
from kvist.spec.model import LayerSpec, ModelSpec

SPLIT_ROWS = 4
"""Most rows of a pass whose spans are attended apart; more rows give enough chunks by themselves."""
SPAN_TOKENS = attention.SPAN_TOKENS
CHUNK_BYTES = 512 << 10
"""Most weights that a chunk of a pass of few rows reads: a chunk costs a microsecond to start, ten to read."""
FEW_ROWS = 8
MAX_CONTROLS = 64
"""Control blocks that a program keeps ready, some tens of kilobytes each."""


@dataclass(frozen=True)
class Counts:
    """How many chunks a line has: so many for each row, each row whose spans are attended apart, each row of logits, each
    part of an attention tile; or fixed."""

    rows: int = 0
    split_rows: int = 0
    outputs: int = 0
    tiles: int = 0
    fixed: int = 0
    if_outputs: int = 0


@dataclass
class Work:
    """Places in the work arena, given out one after the other."""

    size: int = WORK_HEAD

    def place(self, num_bytes: int) -> int:
        offset, self.size = self.size, padded(self.size + num_bytes, 64)
        return offset


@dataclass(frozen=True)
class Input:
    """Rows that a matmul reads: as f32 or quantised."""

    at: int
    stride: int
    is_quantised: bool


@dataclass
class Kernels:
    """The compiled kernels that a program names, by the number under which it names them."""

    compiled: list[Any] = field(default_factory=list)
    numbers: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _addresses: Any = None

    def number(self, make: Callable[..., Any], *constants: int) -> int:
        """The number of ``make(*constants)``, compiled if need be."""
        key = (make, *constants)
        if key not in self.numbers:
            self.numbers[key] = len(self.compiled)
            self.compiled.append(make(*constants))
            self._addresses = None
        return self.numbers[key]

    @property
    def addresses(self) -> Any:
        """What the interpreter calls, by number."""
        if self._addresses is None:
            self._addresses = jit.addresses(self.compiled)
        return self._addresses


class Program:
    """Lines, each with the counts that its number of chunks follows. ``table`` is int64 [lines, FIELDS].

    ``layers`` says for each line which layer it belongs to, -1 for none.
    """

    def __init__(self) -> None:
        self.layer = -1
        self.layers: list[int] = []
        self._lines: list[list[int]] = []
        self._counts: list[tuple[int, ...]] = []
        self._controls: dict[tuple[int, ...], npt.NDArray[np.int64]] = {}

    def add(
        self, kernel: int, counts: Counts, fields: tuple[str, ...], *, has_barrier: bool = True, **values: int
    ) -> None:
        assert set(values) == set(fields), set(values) ^ set(fields)
        line = [0] * FIELDS
        line[KERNEL], line[HAS_BARRIER] = kernel, int(has_barrier)
        for number, name in enumerate(fields, start=FIRST_FIELD):
            line[number] = int(values[name])
        self._lines.append(line)
        self.layers.append(self.layer)
        self._counts.append(
            (counts.rows, counts.split_rows, counts.outputs, counts.tiles, counts.fixed, counts.if_outputs)
        )

    @functools.cached_property
    def table(self) -> npt.NDArray[np.int64]:
        return np.array(self._lines, np.int64)

    def control(
        self, num_rows: int, num_split_rows: int, num_outputs: int, num_tile_parts: int
    ) -> npt.NDArray[np.int64]:
        """A fresh control block for a pass of so many rows, rows attended apart, rows of logits, and parts of tiles."""
        key = (num_rows, num_split_rows, num_outputs, num_tile_parts)
        if key not in self._controls:
            if len(self._controls) >= MAX_CONTROLS:
                self._controls.clear()
            control = np.zeros(CONTROL_HEAD + len(self._lines) * COUNTERS, np.int64)
            numbers = np.array(
                [num_rows, num_split_rows, num_outputs, num_tile_parts, 1, int(num_outputs > 0)], np.int64
            )
            control[CONTROL_HEAD + CHUNKS :: COUNTERS] = np.array(self._counts, np.int64) @ numbers
            self._controls[key] = control
        return self._controls[key].copy()


class Writer:
    """Writes a model's program for passes of up to ``max_rows`` rows into a cache."""

    def __init__(
        self,
        model: ModelSpec,
        spec: DecoderSpec,
        weights: ModelWeights,
        cache: KvCache,
        kernels: Kernels,
        *,
        max_rows: int,
        num_threads: int,
    ) -> None:
        self.model, self.spec, self.weights, self.cache = model, spec, weights, cache
        self.kernels, self.num_threads, self.max_rows = kernels, num_threads, max_rows
        self.tile_rows = tile_rows(model.layers[0])
        self.work = Work()
        self.wide = padded(model.width)
        self.x = self.work.place(max_rows * self.wide * 4)
        rows_bytes = max(self.wide * 4, quantised_row_bytes(self.wide))
        self.normed = self.work.place(max_rows * rows_bytes)
        widest = max(layer.num_heads * layer.k_dim for layer in model.layers)
        self.qkv_stride = 4 * padded(
            max((layer.num_heads + 2 * layer.num_kv_heads) * layer.k_dim for layer in model.layers)
        )
        self.qkv = self.work.place(max_rows * self.qkv_stride)
        self.q = self.work.place(max_rows * widest * 4)
        self.attended_stride = padded(widest) * 4
        self.attended = self.work.place(max_rows * self.attended_stride)
        self.attended_q = self.work.place(max_rows * quantised_row_bytes(padded(widest)))
        self.mlp = padded(model.mlp_width)
        self.up_stride = 4 * self.mlp * (2 if spec.is_gated else 1)
        self.up = self.work.place(max_rows * self.up_stride)
        self.hidden = self.work.place(max_rows * max(self.mlp * 4, quantised_row_bytes(self.mlp)))
        self.turned = spec.rope.dim if spec.rope else 0
        self.angles = self.work.place(max_rows * self.turned * 4)
        self.spans = -(-cache.num_tokens // SPAN_TOKENS)
        record = max(attention.RECORD_HEAD + layer.k_dim * 4 for layer in model.layers)
        heads = max(layer.num_heads for layer in model.layers)
        self.parts = self.work.place(min(SPLIT_ROWS, max_rows) * heads * self.spans * record)
        self.scratch_bytes = padded(self._scratch_bytes(), 64)
        self.scratch = self.work.place(self.scratch_bytes * num_threads)
        self.logits_stride = 4 * padded(model.vocab_size, 16)
        self.logits = self.work.size

    def _scratch_bytes(self) -> int:
        """Scratch that a thread needs: a row of the widest norm or activation, or a tile of attention."""
        queries = max(self.tile_rows * layer.num_heads // layer.num_kv_heads for layer in self.model.layers)
        dims = max(layer.k_dim for layer in self.model.layers)
        return max(4 * max(self.wide, self.mlp), attention.scratch_bytes(dims, queries), 8 * dims)

    def write(self, is_few: bool) -> Program:
        """The program for passes of few rows, or of many: they differ in how matrices are divided into chunks."""
        program = Program()
        self._embed(program)
        for number, (layer, weights) in enumerate(zip(self.model.layers, self.weights.layers, strict=True)):
            program.layer = number
            self._attention(program, layer, weights, self.cache.store.places[number], is_few)
            self._mlp(program, weights, is_few)
        program.layer = -1
        placed = [(self.weights.output, 0)]
        rows = self._norm(program, self.weights.final_norm, placed, is_last=True)
        self._matmul(program, placed, rows, self.logits, self.logits_stride, is_few, is_last=True)
        return program

    def _embed(self, program: Program) -> None:
        embedded, rope = self.weights.embedding, self.spec.rope
        kernel = self.kernels.number(embedding.embedding_kernel, matmul.FORMS[embedded.form])
        program.add(
            kernel, Counts(rows=1), embedding.EM_FIELDS, has_barrier=rope is None, w=embedded.offset, width=embedded.width,
            padded=padded(embedded.width), out=self.x, out_stride=self.wide * 4, positions=self.weights.positions,
        )  # fmt: skip
        if rope is not None:
            program.add(
                self.kernels.number(rotary.rotary_kernel), Counts(rows=1), rotary.ROPE_FIELDS, frequencies=self.weights.frequencies,
                count=rope.dim // 2, factor=self.weights.one, out=self.angles, out_stride=self.turned * 4,
            )  # fmt: skip

    def _norm(self, program: Program, norm: Norm, placed: Placed, *, is_last: bool = False) -> Input:
        """Norm of x, in the form that the matrices after it read."""
        is_quantised = placed[0][0].form in matmul.QUANTISED
        assert all((matrix.form in matmul.QUANTISED) == is_quantised for matrix, _ in placed), [
            m.form for m, _ in placed
        ]
        stride = quantised_row_bytes(self.wide) if is_quantised else self.wide * 4
        kernel = self.kernels.number(elementwise.norm_kernel, elementwise.NORMS[self.spec.norm], int(is_quantised))
        program.add(
            kernel, Counts(outputs=1) if is_last else Counts(rows=1), elementwise.NORM_FIELDS, x=self.x, stride=self.wide * 4,
            width=self.model.width, weight=norm.weight, bias=norm.bias, eps=self.weights.eps, out=self.normed, out_stride=stride,
            is_last=is_last,
        )  # fmt: skip
        return Input(self.normed, stride, is_quantised)

    def _matmul(
        self,
        program: Program,
        placed: Placed,
        rows: Input,
        out: int,
        stride: int,
        is_few: bool,
        *,
        adds: bool = False,
        is_last: bool = False,
    ) -> None:
        for number, (matrix, first_row) in enumerate(placed):
            assert matrix.offset + matrix.num_bytes <= self.weights.arena.size, matrix
            chunk = self._chunk_panels(matrix, is_few)
            across = -(-matrix.num_panels // chunk)
            kernel = self.kernels.number(matmul.matmul_kernel, matmul.FORMS[matrix.form])
            program.add(
                kernel, Counts(if_outputs=across) if is_last else Counts(fixed=across), matmul.MM_FIELDS,
                has_barrier=number == len(placed) - 1, w=matrix.offset, panels=matrix.num_panels, width=padded(matrix.width),
                x=rows.at, x_stride=rows.stride, out=out + first_row * 4, out_stride=stride, bias=matrix.bias, adds=adds,
                is_last=is_last, chunk_panels=chunk, chunk_rows=self.max_rows,
            )  # fmt: skip

    def _chunk_panels(self, matrix: Matrix, is_few: bool) -> int:
        """Panels a chunk: for few rows two chunks a thread, or more of half a megabyte; one or two panels for many rows."""
        if not is_few:
            return 2 if matrix.num_panels >= 16 * self.num_threads else 1
        a_thread = max(2, -(-matrix.num_bytes // (CHUNK_BYTES * self.num_threads)))
        return -(-matrix.num_panels // (a_thread * self.num_threads))

    def _attention(
        self, program: Program, layer: LayerSpec, weights: LayerWeights, place: LayerPlace, is_few: bool
    ) -> None:
        rows = self._norm(program, weights.attention_norm, weights.qkv)
        self._matmul(program, weights.qkv, rows, self.qkv, self.qkv_stride, is_few)
        share = layer.num_heads // layer.num_kv_heads
        codecs = attention.CODECS[self.cache.spec.k_codec], attention.CODECS[self.cache.spec.v_codec]
        stored = dataclasses.asdict(place)
        common = {
            "kv_heads": layer.num_kv_heads,
            "share": share,
            "q": self.q,
            "q_head": self.max_rows * share * layer.k_dim * 4,
        }
        program.add(
            self.kernels.number(blocks.append_kernel, layer.k_dim, *codecs), Counts(rows=layer.num_kv_heads), blocks.AP_FIELDS,
            qkv=self.qkv, qkv_stride=self.qkv_stride, angles=self.angles, angles_stride=self.turned * 4, turned=self.turned,
            scale=weights.scale, q_norm=weights.q_norm, k_norm=weights.k_norm, eps=self.weights.eps, **stored, **common,
        )  # fmt: skip
        is_quantised = weights.attention_output[0][0].form in matmul.QUANTISED
        width = layer.num_heads * layer.k_dim
        stride = quantised_row_bytes(padded(width))
        is_apart = share * layer.k_dim % GROUP == 0 or layer.num_kv_heads == 1
        place_q = self.attended_q if is_quantised else -1
        out = {
            "out": self.attended, "out_stride": self.attended_stride, "parts": self.parts, "window": layer.window or 0,
            "width": width, "quantised_stride": stride,
        }  # fmt: skip
        program.add(
            self.kernels.number(attention.attention_kernel, layer.k_dim, *codecs, share), Counts(tiles=layer.num_kv_heads),
            attention.AT_FIELDS, quantised=place_q if is_apart else -1, **stored, **common, **out,
        )  # fmt: skip
        chunk_heads = share if is_apart else layer.num_heads
        heads = layer.num_heads // chunk_heads
        program.add(
            self.kernels.number(attention.finish_kernel, layer.k_dim), Counts(split_rows=heads) if is_apart else Counts(rows=heads),
            attention.FIN_FIELDS, heads=layer.num_heads, chunk_heads=chunk_heads, share=share, quantised=place_q, **out,
        )  # fmt: skip
        rows = (
            Input(self.attended_q, stride, True) if is_quantised else Input(self.attended, self.attended_stride, False)
        )
        self._matmul(program, weights.attention_output, rows, self.x, self.wide * 4, is_few, adds=True)

    def _mlp(self, program: Program, weights: LayerWeights, is_few: bool) -> None:
        rows = self._norm(program, weights.mlp_norm, weights.up)
        self._matmul(program, weights.up, rows, self.up, self.up_stride, is_few)
        is_quantised = weights.down[0][0].form in matmul.QUANTISED
        stride = quantised_row_bytes(self.mlp) if is_quantised else self.mlp * 4
        segment = padded(-(-self.mlp // (2 * self.num_threads))) if is_few else self.mlp
        up = self.up + padded(self.model.mlp_width, 16) * 4 if self.spec.is_gated else -1
        program.add(
            self.kernels.number(elementwise.activation_kernel, elementwise.ACTIVATIONS[self.spec.activation], int(is_quantised)),
            Counts(rows=-(-self.mlp // segment)), elementwise.ACT_FIELDS, segment=segment, gate=self.up, up=up, stride=self.up_stride, width=self.model.mlp_width,
            out=self.hidden, out_stride=stride,
        )  # fmt: skip
        self._matmul(
            program, weights.down, Input(self.hidden, stride, is_quantised), self.x, self.wide * 4, is_few, adds=True
        )


def tile_rows(layer: LayerSpec) -> int:
    """Rows of an attention tile: about 48 queries of a KV head, in whole groups of the kernel's."""
    share = layer.num_heads // layer.num_kv_heads
    group = np.lcm(attention.target.current().query_rows, share)
    return int(max(group, 48 // group * group) // share)
