"""The lines of a program that compute latent attention, from the normed row to the rows that its last matrix reads.

Absorbed throughout (``kernels.latent``): queries and latents from the row, each head's query times its part of the
matrix that would expand keys, attention over latents, and each head's result times its part of the other.
"""

from __future__ import annotations

from kvist.cache.store import LayerPlace
from kvist.kernels import attention, elementwise, latent, matmul, spans, tally
from kvist.kernels.layout import GROUP, PANEL_ROWS, padded, quantised_row_bytes
from kvist.model.desk import Desk, Multiply
from kvist.model.families import LatentSpec
from kvist.model.heads import num_key_heads, num_shared
from kvist.model.inputs import Input
from kvist.model.latent_weights import LatentWeights
from kvist.model.program import Counts, Kernels, Program, Work
from kvist.model.weights import Matrix
from kvist.spec.model import LayerSpec

ALL_PANELS_TOGETHER = 2
"""Heads a thread from which on a head's matrix is one chunk."""


class LatentLines:
    """Writes them for one model, whose latent layers are all alike; has places of its own in the work arena."""

    def __init__(self, work: Work, spec: LatentSpec, layer: LayerSpec, kernels: Kernels, max_rows: int) -> None:
        self.spec, self.layer, self.kernels = spec, layer, kernels
        queries = layer.num_heads * (spec.own + spec.turned)
        first = spec.q_rank or queries
        self._mixed_stride = 4 * padded(padded(first, PANEL_ROWS) + spec.rank + spec.turned + GROUP)
        self._mixed = work.place(max_rows * self._mixed_stride)
        self._queries, self._queries_stride, self._low = self._mixed, self._mixed_stride, self._mixed
        if spec.q_rank is not None:
            self._queries_stride = 4 * padded(queries + GROUP)
            self._queries = work.place(max_rows * self._queries_stride)
            low = padded(spec.q_rank)
            self._low = work.place(max_rows * max(low * 4, quantised_row_bytes(low)))
        self._gathered_stride = 4 * padded(layer.num_heads * spec.v_dim)
        self._gathered = work.place(max_rows * self._gathered_stride)

    @property
    def _heads(self) -> tuple[int, int]:
        """KV heads as the kernels divide them, and the query heads of each."""
        return num_key_heads(self.layer), num_shared(self.layer)

    def write(
        self,
        program: Program,
        weights: LatentWeights,
        place: LayerPlace,
        codec: int,
        rows: Input,
        desk: Desk,
        multiply: Multiply,
        *,
        has_tallies: bool,
        low_is_quantised: bool,
        is_quantised: bool,
    ) -> Input:
        """Write a layer's lines; ``rows`` are normed, and what is returned is what its last matrix reads."""
        multiply(weights.mixed, rows, self._mixed, self._mixed_stride)
        if weights.q_b:
            low = self._norm(program, weights, is_quantised=low_is_quantised)
            multiply(weights.q_b, low, self._queries, self._queries_stride)
        self._absorb(program, weights.keys, desk)
        self._append(program, weights, place, codec, desk)
        if has_tallies:
            self._tally(program, place, codec, desk)
        self._attend(program, place, codec, desk)
        self._expand(program, weights.values, desk)
        if not is_quantised:
            return Input(self._gathered, self._gathered_stride, is_quantised=False)
        return self._quantise(program, desk)

    def _norm(self, program: Program, weights: LatentWeights, *, is_quantised: bool) -> Input:
        """The low-rank form of the queries, normed."""
        assert self.spec.q_rank is not None
        width = self.spec.q_rank
        stride = quantised_row_bytes(padded(width)) if is_quantised else padded(width) * 4
        values = {
            "x": self._mixed,
            "stride": self._mixed_stride,
            "width": width,
            "weight": weights.q_norm,
            "bias": -1,
            "eps": weights.eps,
            "out": self._low,
            "out_stride": stride,
            "is_last": 0,
        }
        kernel = self.kernels.number(elementwise.norm_kernel, elementwise.RMS, int(is_quantised))
        program.add(kernel, Counts(row_chunks=1), elementwise.NORM, values)
        return Input(self._low, stride, is_quantised)

    def _multiply_heads(self, program: Program, matrix: Matrix, places: dict[str, int], num_threads: int) -> None:
        """Each head's columns times its part of a matrix."""
        heads = self.layer.num_heads
        panels = matrix.num_panels // heads
        chunk_panels = panels if heads >= ALL_PANELS_TOGETHER * num_threads else -(-panels // num_threads)
        values = {
            "w": matrix.offset,
            "heads": heads,
            "panels": panels,
            "width": padded(matrix.width),
            "chunk_panels": chunk_panels,
            **places,
        }
        kernel = self.kernels.number(latent.heads_kernel, matmul.FORMS[matrix.form])
        program.add(kernel, Counts(fixed=heads * -(-panels // chunk_panels)), latent.HEADS, values)

    def _absorb(self, program: Program, keys: Matrix, desk: Desk) -> None:
        """Queries as they meet latents, where attention reads them."""
        _, share = self._heads
        size = self.layer.k_dim * 4
        places = {
            "x": self._queries,
            "x_head": (self.spec.own + self.spec.turned) * 4,
            "x_stride": self._queries_stride,
            "out": desk.q,
            "out_stride": share * size,
            "share": share,
            "out_outer": desk.max_rows * share * size,
            "out_inner": size,
        }
        self._multiply_heads(program, keys, places, desk.num_threads)

    def _expand(self, program: Program, values: Matrix, desk: Desk) -> None:
        """What each head attended to, as its values."""
        places = {
            "x": desk.attended,
            "x_head": self.spec.rank * 4,
            "x_stride": desk.attended_stride,
            "out": self._gathered,
            "out_stride": self._gathered_stride,
            "share": self.layer.num_heads,
            "out_outer": 0,
            "out_inner": self.spec.v_dim * 4,
        }
        self._multiply_heads(program, values, places, desk.num_threads)

    def _place(self, place: LayerPlace, desk: Desk) -> dict[str, int]:
        """What the lines that read queries and keys share: all KV heads have the same keys."""
        kv_heads, share = self._heads
        return {
            "group": place.group,
            "kv_heads": kv_heads,
            "share": share,
            "q": desk.q,
            "q_head": desk.max_rows * share * self.layer.k_dim * 4,
            "k": place.k,
            "k_block": place.k_block,
        }

    def _append(self, program: Program, weights: LatentWeights, place: LayerPlace, codec: int, desk: Desk) -> None:
        values = {
            "latents": self._mixed + weights.latents * 4,
            "latents_stride": self._mixed_stride,
            "queries": self._queries,
            "queries_stride": self._queries_stride,
            "query_head": (self.spec.own + self.spec.turned) * 4,
            "own": self.spec.own * 4,
            "sink_q": desk.sink_q,
            "angles": desk.angles,
            "angles_stride": self.spec.turned * 4,
            "sink_angles": desk.sink_angles,
            "turned": self.spec.turned,
            "scale": weights.scale,
            "norm": weights.kv_norm,
            "eps": weights.eps,
            "window": 0,
            **self._place(place, desk),
        }
        kernel = self.kernels.number(latent.latent_append_kernel, self.layer.k_dim, self.spec.rank, codec)
        program.add(kernel, Counts(row_chunks=self._heads[0]), latent.LATENT, values)

    def _tally(self, program: Program, place: LayerPlace, codec: int, desk: Desk) -> None:
        kv_heads, share = self._heads
        values = {"cap": -1, "k_head": 0, "v": 0, "v_head": 0, "v_block": 0, **self._place(place, desk)}
        kernel = self.kernels.number(tally.tally_kernel, self.layer.k_dim, codec, spans.CODEC_NONE, share, 0)
        program.add(kernel, Counts(tallies=kv_heads), tally.TALLY, values, has_barrier=False)

    def _attend(self, program: Program, place: LayerPlace, codec: int, desk: Desk) -> None:
        (kv_heads, share), heads = self._heads, self.layer.num_heads
        out = {
            "out": desk.attended,
            "out_stride": desk.attended_stride,
            "parts": desk.parts,
            "window": 0,
            "width": heads * self.spec.rank,
            "quantised": -1,
            "quantised_stride": 0,
            "nothing": -1,
        }
        values = {
            "cap": -1,
            "chunks_ahead": desk.num_threads,
            "sink_q": desk.sink_q,
            "k_head": 0,
            "v": 0,
            "v_head": 0,
            "v_block": 0,
            **self._place(place, desk),
            **out,
        }
        kernel = self.kernels.number(latent.latent_attention_kernel, self.layer.k_dim, self.spec.rank, codec, share)
        program.add(kernel, Counts(tiles=kv_heads), attention.AT, values)
        values = {"heads": heads, "chunk_heads": share, "share": share, **out}
        kernel = self.kernels.number(attention.finish_kernel, self.spec.rank, spans.CODEC_F32)
        program.add(kernel, Counts(split_rows=kv_heads), attention.FIN, values)

    def _quantise(self, program: Program, desk: Desk) -> Input:
        width = padded(self.layer.num_heads * self.spec.v_dim)
        values = {
            "x": self._gathered,
            "stride": self._gathered_stride,
            "width": width,
            "out": desk.attended_q,
            "out_stride": quantised_row_bytes(width),
        }
        program.add(self.kernels.number(latent.rows_kernel), Counts(row_chunks=1), latent.ROWS, values)
        return Input(desk.attended_q, quantised_row_bytes(width), is_quantised=True)
