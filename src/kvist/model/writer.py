"""Writes a model's forward pass as a program: where each activation stands, and which kernel reads and writes what.

Knows families only by the switches of ``DecoderSpec``, and the cache only by where its layers' blocks stand.
"""

from __future__ import annotations

import math

from kvist.cache.kv_cache import KvCache
from kvist.cache.store import LayerPlace
from kvist.kernels import (
    attention,
    caps,
    elementwise,
    embedding,
    gated,
    matmul,
    peaks,
    residual,
    rotary,
    spans,
    tally,
    target,
)
from kvist.kernels.layout import SPAN_TOKENS, padded, quantised_row_bytes
from kvist.model import ranges
from kvist.model.desk import Desk, Multiply
from kvist.model.expert_lines import ExpertLines, Site, wants_codes
from kvist.model.expert_weights import ExpertWeights
from kvist.model.families import DecoderSpec
from kvist.model.head_lines import HeadLines
from kvist.model.heads import num_shared, value_width
from kvist.model.inputs import Input, is_quantised_input
from kvist.model.latent_lines import LatentLines
from kvist.model.layers import LayerWeights, ModelWeights, Norm, Turn
from kvist.model.mlp_lines import MlpLines
from kvist.model.program import Counts, Kernels, Program, Work
from kvist.model.weights import Matrix, Placed
from kvist.spec.model import LayerSpec, ModelSpec

SPLIT_ROWS = 4
"""Most rows of a pass whose spans are attended apart; more rows give enough chunks by themselves."""
CHUNK_BYTES = 512 << 10
"""Most weights that a chunk of a pass of few rows reads: a chunk costs a microsecond to start, ten to read."""
TILE_QUERIES = 48
"""About how many queries of a KV head an attention tile has: enough to keep the keys that it reads busy."""

CAP_COLUMNS = 4096
"""Logits of a row that are capped in one chunk."""


class Writer:
    """Writes a model's programs for passes of up to ``max_rows`` rows into a cache.

    ``logits`` is where the logits of a pass start in the work arena, after everything else; in each row, ``peaks``
    bytes on, the largest of each segment.
    """

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
        has_tallies: bool = False,
    ) -> None:
        self.model, self.spec, self.weights, self.cache = model, spec, weights, cache
        self.kernels, self.num_threads, self.max_rows = kernels, num_threads, max_rows
        self.has_tallies = has_tallies
        self.tile_rows = tile_rows(model.layers[0])
        self.num_spans = -(-cache.num_tokens // SPAN_TOKENS) + 1  # a window may begin and end inside one
        self._place()

    def _place(self) -> None:
        """Give every activation its place in the work arena."""
        work, layers, max_rows = Work(), self.model.layers, self.max_rows
        self.wide = padded(self.model.width)
        self.x = work.place(max_rows * self.wide * 4)
        self.normed = work.place(max_rows * max(self.wide * 4, quantised_row_bytes(self.wide)))
        widest = max(layer.num_heads * max(layer.k_dim, self._attended_width(layer)) for layer in layers)
        self.heads = HeadLines(work, self.model, self.spec, self.weights, self.kernels, max_rows)
        self.q, self.sink_q = work.place(max_rows * widest * 4), work.place(max_rows * widest * 4)
        self.attended_stride = padded(widest) * 4
        self.attended = work.place(max_rows * self.attended_stride)
        self.attended_q = work.place(max_rows * quantised_row_bytes(padded(widest)))
        self.mlp = MlpLines(work, self.model, self.spec, self.kernels, max_rows, self.num_threads)
        self.branch = self.x if self._adds_at_once else work.place(max_rows * self.wide * 4)
        self.angles = [
            (work.place(max_rows * turn.dim * 4), work.place(max_rows * turn.dim * 4)) for turn in self._turns
        ]
        record = max(attention.num_record_bytes(self._value_width(layer)) for layer in layers)
        heads = max(layer.num_heads for layer in layers)
        self.parts = work.place(min(SPLIT_ROWS, max_rows) * heads * (self.num_spans + 1) * record)
        kinds = {kind for kind in self.model.experts if kind is not None}
        self.experts = ExpertLines(self._site(), kinds, work) if kinds else None
        self.latents = None
        if self.spec.latent is not None:
            self.latents = LatentLines(work, self.spec.latent, layers[0], self.kernels, max_rows)
        self.scratch_bytes = padded(self._scratch_bytes(), 64)
        self.scratch = work.place(self.scratch_bytes * self.num_threads)
        self.num_peaks = -(-self.model.vocab_size // peaks.SEGMENT)
        self.peaks = 4 * padded(self.model.vocab_size, 16)
        self.logits_stride = self.peaks + 4 * padded(self.num_peaks, 16)
        self.logits = work.num_bytes

    @property
    def _turns(self) -> tuple[Turn, ...]:
        return self.weights.turns

    @property
    def _adds_at_once(self) -> bool:
        """Whether a branch's last matrix can add to the residual stream itself."""
        return self.spec.norm_place == "before" and self.spec.residual_scale == 1

    def _site(self) -> Site:
        """What layers with experts use."""
        return Site(
            branch=self.branch,
            adds=self._adds_at_once,
            wide=self.wide,
            width=self.model.width,
            max_rows=self.max_rows,
            num_threads=self.num_threads,
            kernels=self.kernels,
            spec=self.spec,
            multiply=self._matmul,
        )

    def _scratch_bytes(self) -> int:
        """Scratch that a thread needs: a row of the widest norm or activation, or a tile of attention."""
        queries = max(self.tile_rows * num_shared(layer) for layer in self.model.layers)
        dims = max(layer.k_dim for layer in self.model.layers)
        values = max(self._value_width(layer) for layer in self.model.layers)
        tally_bytes = 0
        if self.has_tallies:
            shares = [num_shared(layer) for layer in self.model.layers]
            tally_bytes = max(tally.scratch_bytes(self.num_spans, share) for share in shares)
        low = padded(self.spec.latent.q_rank or 0) if self.spec.latent else 0
        outputs = [matrix for weights in self.weights.layers for matrix, _ in weights.attention_output]
        widest = max(self.wide, self.mlp.width, low, *(padded(matrix.width) for matrix in outputs))
        attending = attention.scratch_bytes(values, queries)
        multiplying = matmul.scratch_bytes(widest)
        if any(self.mlp.is_gated_at_once(weights) for weights in self.weights.layers if weights.up):
            multiplying = max(multiplying, gated.scratch_bytes(self.wide, self.max_rows))
        expert_bytes = self.experts.scratch_bytes if self.experts else 0
        return max(tally_bytes, expert_bytes, 4 * widest, multiplying, attending, 8 * dims)

    def _attended_width(self, layer: LayerSpec) -> int:
        """Numbers that a query head gives to the last matrix of attention."""
        return self.spec.latent.v_dim if self.spec.latent and layer.kind == "mla" else layer.k_dim

    def _value_width(self, layer: LayerSpec) -> int:
        """Numbers that a query head attends to."""
        return value_width(layer, self.spec.latent.rank if self.spec.latent else 0)

    def write(self, *, is_few: bool, has_tallies: bool = False) -> Program:
        """The program for passes of few rows, or of many: they differ in how matrices are divided into chunks.

        ``has_tallies``: for passes with rows whose attention is tallied, which a writer that has them can write.
        """
        assert self.has_tallies or not has_tallies
        program = Program()
        self._embed(program)
        for number, (layer, weights) in enumerate(zip(self.model.layers, self.weights.layers, strict=True)):
            program.layer = number
            place, turn = self.cache.store.places[number], self.spec.rope_number(number, layer)
            rows = self._attention(program, layer, weights, place, turn, is_few, has_tallies)
            if self.spec.is_parallel:
                hidden = self._mlp(program, weights, is_few)
                self._branch(program, weights.attention_output, rows, weights.attention_post_norm, is_few)
                self._branch(program, weights.down, hidden, weights.mlp_post_norm, is_few)
                continue
            self._branch(program, weights.attention_output, rows, weights.attention_post_norm, is_few)
            if weights.experts:
                self._experts(program, weights, weights.experts, is_few)
            else:
                hidden = self._mlp(program, weights, is_few)
                self._branch(program, weights.down, hidden, weights.mlp_post_norm, is_few)
        program.layer = -1
        placed = [(self.weights.output, 0)]
        rows = self._norm(program, self.weights.final_norm, placed, is_last=True)
        self._matmul(program, placed, rows, self.logits, self.logits_stride, is_few, is_last=True)
        self._cap(program)
        self._peaks(program)
        ranges.check(program, self.kernels.keys, self.limits)
        return program

    @property
    def limits(self) -> ranges.Limits:
        """What a program of this writer may count on."""
        return ranges.Limits(
            weights_bytes=self.weights.arena.size,
            cache_bytes=self.cache.store.num_bytes,
            work_bytes=self.logits + self.logits_stride,
            scratch_bytes=self.scratch_bytes,
            logits_stride=self.logits_stride,
            num_rows=self.max_rows,
            num_split_rows=min(SPLIT_ROWS, self.max_rows),
            num_spans=self.num_spans,
            tile_rows=self.tile_rows,
            num_blocks=tuple(pool.num_blocks for pool in self.cache.pools),
            vocab_size=self.model.vocab_size,
            context_length=self.model.context_length,
        )

    def _embed(self, program: Program) -> None:
        matrix = self.weights.embedding
        values = {
            "w": matrix.offset,
            "width": matrix.width,
            "padded": padded(matrix.width),
            "out": self.x,
            "out_stride": self.wide * 4,
            "positions": self.weights.positions,
            "scale": self.weights.embedding_scale,
        }
        kernel = self.kernels.number(embedding.embedding_kernel, matmul.FORMS[matrix.form])
        program.add(kernel, Counts(rows=1), embedding.EM, values, has_barrier=not self._turns)
        for number, (turn, (out, sink_out)) in enumerate(zip(self._turns, self.angles, strict=True), start=1):
            turns = {
                "frequencies": turn.frequencies,
                "count": turn.dim // 2,
                "factor": turn.factor,
                "out": out,
                "out_stride": turn.dim * 4,
                "sink_out": sink_out,
            }
            kernel = self.kernels.number(rotary.rotary_kernel)
            program.add(kernel, Counts(rows=1), rotary.ROPE, turns, has_barrier=number == len(self._turns))

    def _cap(self, program: Program) -> None:
        """Cap the logits, where the model does."""
        if self.weights.logit_cap < 0:
            return
        segments = -(-self.model.vocab_size // CAP_COLUMNS)
        values = {
            "x": self.logits,
            "stride": self.logits_stride,
            "width": self.model.vocab_size,
            "segment": CAP_COLUMNS,
            "cap": self.weights.logit_cap,
        }
        program.add(self.kernels.number(caps.cap_kernel), Counts(outputs=segments), caps.CAP, values)

    def _peaks(self, program: Program) -> None:
        chunk_segments = -(-self.num_peaks // (2 * self.num_threads))
        values = {
            "x": self.logits,
            "stride": self.logits_stride,
            "width": self.model.vocab_size,
            "out": self.logits + self.peaks,
            "out_stride": self.logits_stride,
            "segments": self.num_peaks,
            "chunk_segments": chunk_segments,
        }
        counts = Counts(outputs=-(-self.num_peaks // chunk_segments))
        program.add(self.kernels.number(peaks.peaks_kernel), counts, peaks.PEAKS, values)

    def _norm(self, program: Program, norm: Norm, placed: Placed, *, is_last: bool = False) -> Input:
        """Norm of x, in the form that the matrices after it read."""
        is_quantised = is_quantised_input(placed)
        stride = quantised_row_bytes(self.wide) if is_quantised else self.wide * 4
        rows = Input(self.normed, stride, is_quantised)
        self._norm_to(program, norm, rows, is_last=is_last)
        return rows

    def _norm_to(
        self, program: Program, norm: Norm, rows: Input, *, is_last: bool = False, has_barrier: bool = True
    ) -> None:
        """Norm of x to where, and in the form in which, ``rows`` are read."""
        values = {
            "x": self.x,
            "stride": self.wide * 4,
            "width": self.model.width,
            "weight": norm.weight,
            "bias": norm.bias,
            "eps": self.weights.eps,
            "out": rows.at,
            "out_stride": rows.stride,
            "is_last": is_last,
        }
        kernel = self.kernels.number(elementwise.norm_kernel, elementwise.NORMS[norm.kind], int(rows.is_quantised))
        counts = Counts(outputs=1) if is_last else Counts(row_chunks=1)
        program.add(kernel, counts, elementwise.NORM, values, has_barrier=has_barrier)

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
        """Input times each matrix of a role, to (or, ``adds``, added to) ``out``."""
        for number, (matrix, first_row) in enumerate(placed, start=1):
            chunk_panels = self._chunk_panels(matrix, is_few or is_last)
            across = -(-matrix.num_panels // chunk_panels)
            values = {
                "w": matrix.offset,
                "panels": matrix.num_panels,
                "width": padded(matrix.width),
                "x": rows.at,
                "x_stride": rows.stride,
                "out": out + first_row * 4,
                "out_stride": stride,
                "bias": matrix.bias,
                "adds": adds,
                "is_last": is_last,
                "chunk_panels": chunk_panels,
                "chunk_rows": self.max_rows,
                "stride_panels": chunk_panels * self.num_threads,
            }
            kernel = self.kernels.number(matmul.matmul_kernel, matmul.FORMS[matrix.form])
            counts = Counts(if_outputs=across) if is_last else Counts(fixed=across)
            program.add(kernel, counts, matmul.MM, values, has_barrier=number == len(placed))

    def _multiply(self, program: Program, is_few: bool) -> Multiply:
        """``_matmul`` for those who write parts of a layer."""

        def multiply(placed: Placed, rows: Input, out: int, stride: int) -> None:
            self._matmul(program, placed, rows, out, stride, is_few)

        return multiply

    def _chunk_panels(self, matrix: Matrix, is_few: bool) -> int:
        """Panels a chunk: for few rows two chunks a thread, or more of half a megabyte; for many one or two panels."""
        if not is_few:
            return 2 if matrix.num_panels >= 16 * self.num_threads else 1
        a_thread = max(2, -(-matrix.num_bytes // (CHUNK_BYTES * self.num_threads)))
        return -(-matrix.num_panels // (a_thread * self.num_threads))

    def _attention(
        self,
        program: Program,
        layer: LayerSpec,
        weights: LayerWeights,
        place: LayerPlace,
        turn: int | None,
        is_few: bool,
        has_tallies: bool,
    ) -> Input:
        """All of attention but its last matrix, whose input is returned."""
        rows = self._norm(program, weights.attention_norm, weights.qkv)
        codecs, desk, multiply = self._codecs(place), self._desk(turn), self._multiply(program, is_few)
        if weights.latent is not None:
            assert self.latents is not None and turn is not None, program.layer
            return self.latents.write(
                program,
                weights.latent,
                place,
                codecs[0],
                rows,
                desk,
                multiply,
                has_tallies=has_tallies,
                low_is_quantised=bool(weights.latent.q_b) and is_quantised_input(weights.latent.q_b),
                is_quantised=is_quantised_input(weights.attention_output),
            )
        turned = 0 if turn is None else self._turns[turn].dim
        return self.heads.write(
            program, layer, weights, place, codecs, rows, desk, multiply, turned=turned, has_tallies=has_tallies
        )

    def _codecs(self, place: LayerPlace) -> tuple[int, int]:
        spec = self.cache.groups[place.group].spec
        return spans.CODECS[spec.k_codec], spans.CODECS[spec.v_codec]

    def _desk(self, turn: int | None) -> Desk:
        """What a layer's attention works with; where nothing is turned, its angles are never read."""
        return Desk(
            self.q,
            self.sink_q,
            self.attended,
            self.attended_stride,
            self.attended_q,
            self.parts,
            *((self.x, self.x) if turn is None else self.angles[turn]),
            self.max_rows,
            self.num_threads,
        )

    def _mlp(self, program: Program, weights: LayerWeights, is_few: bool) -> Input:
        """All of the MLP but its last matrix, whose input is returned."""
        rows = self._norm(program, weights.mlp_norm, weights.up)
        return self.mlp.write(program, weights, rows, self._multiply(program, is_few), is_few=is_few)

    def _branch(self, program: Program, placed: Placed, rows: Input, norm: Norm, is_few: bool) -> None:
        """A branch's last matrix, and what it gives added to the residual stream."""
        self._matmul(program, placed, rows, self.branch, self.wide * 4, is_few, adds=self._adds_at_once)
        self._add(program, norm)

    def _add(self, program: Program, norm: Norm) -> None:
        """Add a branch to the residual stream, unless what has made it did so at once."""
        if self._adds_at_once:
            return
        values = {
            "x": self.x,
            "stride": self.wide * 4,
            "branch": self.branch,
            "branch_stride": self.wide * 4,
            "width": self.model.width,
            "weight": norm.weight,
            "bias": norm.bias,
            "eps": self.weights.eps,
            "scale": self.weights.residual_scale,
        }
        kernel = self.kernels.number(residual.residual_kernel, elementwise.NORMS[norm.kind])
        program.add(kernel, Counts(rows=1), residual.RES, values)

    def _experts(self, program: Program, layer: LayerWeights, weights: ExpertWeights, is_few: bool) -> None:
        """A layer's experts: the router reads floats, they themselves perhaps int8."""
        assert self.experts is not None
        floats = self.experts.floats
        codes = Input(self.normed, quantised_row_bytes(self.wide), is_quantised=True)
        has_codes = wants_codes(weights)
        self._norm_to(program, layer.mlp_norm, floats, has_barrier=not has_codes)
        if has_codes:
            self._norm_to(program, layer.mlp_norm, codes)
        self.experts.write(program, weights, (floats, codes), is_few)
        self._add(program, layer.mlp_post_norm)


def tile_rows(layer: LayerSpec) -> int:
    """Input of an attention tile: about TILE_QUERIES queries of a KV head, in whole groups of the kernel's."""
    share = num_shared(layer)
    group = math.lcm(target.current().query_rows, share)
    return max(group, TILE_QUERIES // group * group) // share
