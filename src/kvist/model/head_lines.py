"""The lines of a program that compute attention by heads, from the normed row to the row that its last matrix reads."""

from __future__ import annotations

import dataclasses

from kvist.cache.store import LayerPlace
from kvist.kernels import attention, blocks, elementwise, residual, tally
from kvist.kernels.layout import GROUP, padded, quantised_row_bytes
from kvist.model.desk import Desk, Multiply
from kvist.model.families import DecoderSpec
from kvist.model.inputs import Input, is_quantised_input
from kvist.model.layers import LayerWeights, ModelWeights
from kvist.model.program import Counts, Kernels, Program, Work
from kvist.spec.model import LayerSpec, ModelSpec


class HeadLines:
    """Writes them for one model; has places of its own in the work arena, for the rows that hold q, k and v."""

    def __init__(
        self, work: Work, model: ModelSpec, spec: DecoderSpec, weights: ModelWeights, kernels: Kernels, max_rows: int
    ) -> None:
        self.spec, self.weights, self.kernels = spec, weights, kernels
        plain = [layer for layer in model.layers if layer.kind != "mla"]
        mixed = max(((layer.num_heads + 2 * layer.num_kv_heads) * layer.k_dim for layer in plain), default=0)
        self._qkv_stride = 4 * padded(mixed)
        self._qkv = work.place(max_rows * self._qkv_stride)

    def write(
        self,
        program: Program,
        layer: LayerSpec,
        weights: LayerWeights,
        place: LayerPlace,
        codecs: tuple[int, int],
        rows: Input,
        desk: Desk,
        multiply: Multiply,
        *,
        turned: int,
        has_tallies: bool,
    ) -> Input:
        """Write a layer's lines; ``rows`` are normed, and what is returned is what its last matrix reads.

        ``codecs`` are those of keys and values, ``turned`` dims of a head are turned.
        """
        multiply(weights.qkv, rows, self._qkv, self._qkv_stride)
        self._norm(program, layer, weights)
        heads = _heads(layer, place, desk)
        self._append(program, layer, weights, codecs, heads, desk, turned)
        if has_tallies:
            self._tally(program, layer, codecs, heads)
        is_quantised = is_quantised_input(weights.attention_output)
        return self._attend(program, layer, codecs, heads, desk, weights.nothing, is_quantised=is_quantised)

    def _norm(self, program: Program, layer: LayerSpec, weights: LayerWeights) -> None:
        """Norms of q and k that aren't of one head with weights for all; those are append's."""
        if self.spec.qk_norm not in ("each", "all"):
            return
        kernel = self.kernels.number(residual.parts_kernel, elementwise.NORMS[self.spec.norm])
        first = 0
        for heads, weight in ((layer.num_heads, weights.q_norm), (layer.num_kv_heads, weights.k_norm)):
            parts = heads if self.spec.qk_norm == "each" else 1
            width = heads * layer.k_dim // parts
            values = {
                "x": self._qkv + first * 4,
                "stride": self._qkv_stride,
                "parts": parts,
                "width": width,
                "weight": weight,
                "weight_stride": width * 4,
                "eps": self.weights.eps,
            }
            program.add(kernel, Counts(rows=parts), residual.PART, values, has_barrier=first > 0)
            first += heads * layer.k_dim

    def _append(
        self,
        program: Program,
        layer: LayerSpec,
        weights: LayerWeights,
        codecs: tuple[int, int],
        heads: dict[str, int],
        desk: Desk,
        turned: int,
    ) -> None:
        """Queries are prepared, keys and values written into their blocks."""
        has_norm = self.spec.qk_norm == "head"
        values = {
            "qkv": self._qkv,
            "qkv_stride": self._qkv_stride,
            "angles": desk.angles,
            "angles_stride": turned * 4,
            "sink_angles": desk.sink_angles,
            "turned": turned,
            "scale": weights.scale,
            "q_norm": weights.q_norm if has_norm else -1,
            "k_norm": weights.k_norm if has_norm else -1,
            "eps": self.weights.eps,
            "window": layer.window or 0,
            "sink_q": desk.sink_q,
            **heads,
        }
        kernel = self.kernels.number(blocks.append_kernel, layer.k_dim, *codecs)
        program.add(kernel, Counts(row_chunks=layer.num_kv_heads), blocks.AP, values)

    def _tally(self, program: Program, layer: LayerSpec, codecs: tuple[int, int], heads: dict[str, int]) -> None:
        """Beside attention, which reads the same queries and keys: nobody waits for it before the next layer."""
        share = layer.num_heads // layer.num_kv_heads
        is_capped, cap = int(self.weights.score_cap >= 0), self.weights.score_cap
        kernel = self.kernels.number(tally.tally_kernel, layer.k_dim, *codecs, share, is_capped)
        counts = Counts(tallies=layer.num_kv_heads)
        program.add(kernel, counts, tally.TALLY, {**heads, "cap": cap}, has_barrier=False)

    def _attend(
        self,
        program: Program,
        layer: LayerSpec,
        codecs: tuple[int, int],
        heads: dict[str, int],
        desk: Desk,
        nothing: int,
        *,
        is_quantised: bool,
    ) -> Input:
        """Attention, then what ends it: spans attended apart are merged, and rows quantised that no tile could.

        A tile quantises its own heads' columns where these are whole groups; else ``finish`` quantises whole rows.
        """
        share, width = layer.num_heads // layer.num_kv_heads, layer.num_heads * layer.k_dim
        has_whole_groups = share * layer.k_dim % GROUP == 0 or layer.num_kv_heads == 1
        quantised = desk.attended_q if is_quantised else -1
        out = {
            "out": desk.attended,
            "out_stride": desk.attended_stride,
            "parts": desk.parts,
            "window": layer.window or 0,
            "width": width,
            "quantised_stride": quantised_row_bytes(padded(width)),
            "nothing": nothing,
        }
        tile_quantised = quantised if has_whole_groups else -1
        is_capped, cap = int(self.weights.score_cap >= 0), self.weights.score_cap
        values = {
            "quantised": tile_quantised,
            "sink_q": desk.sink_q,
            "cap": cap,
            "chunks_ahead": desk.num_threads,
            **heads,
            **out,
        }
        kernel = self.kernels.number(attention.attention_kernel, layer.k_dim, *codecs, share, is_capped)
        program.add(kernel, Counts(tiles=layer.num_kv_heads), attention.AT, values)
        chunk_heads = share if has_whole_groups else layer.num_heads
        chunks = layer.num_heads // chunk_heads
        values = {"heads": layer.num_heads, "chunk_heads": chunk_heads, "share": share, "quantised": quantised, **out}
        kernel = self.kernels.number(attention.finish_kernel, layer.k_dim, codecs[1])
        counts = Counts(split_rows=chunks) if has_whole_groups else Counts(rows=chunks)
        program.add(kernel, counts, attention.FIN, values)
        if is_quantised:
            return Input(desk.attended_q, out["quantised_stride"], is_quantised=True)
        return Input(desk.attended, desk.attended_stride, is_quantised=False)


def _heads(layer: LayerSpec, place: LayerPlace, desk: Desk) -> dict[str, int]:
    """What the lines of append and attention share: where queries, keys and values stand."""
    share = layer.num_heads // layer.num_kv_heads
    return {
        "kv_heads": layer.num_kv_heads,
        "share": share,
        "q": desk.q,
        "q_head": desk.max_rows * share * layer.k_dim * 4,
        **dataclasses.asdict(place),
    }
