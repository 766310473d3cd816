"""Latent attention by itself: absorbed queries and latents as arrays go through a layer's kernels, over real blocks.

``expected`` is the same in float64, ``twin`` the same operation by operation in NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvist.cache.kv_cache import KvCache
from kvist.cache.sequence import Sequence
from kvist.kernels import attention, latent, simd_numpy, spans
from kvist.kernels.layout import SCRATCH, SPAN_TOKENS
from kvist.model.table import Part, lower
from kvist.spec.cache import CacheSpec
from kvist.spec.model import LayerSpec, ModelSpec
from kvist.spec.retention import ALL, RetentionSpec
from proof.heads import stored
from proof.line import Arena, made, new_work, run_line
from proof.twin import exp_of, float_scores

Array = np.ndarray[Any, Any]
EPS = np.float32(1e-6)


@dataclass(frozen=True)
class Latents:
    """One layer: ``heads`` query heads over latents of width ``rank`` with ``turned`` rotated numbers behind them.

    The heads are divided into ``kv_heads`` parts, which share all keys.
    """

    rank: int = 32
    turned: int = 16
    heads: int = 3
    kv_heads: int = 1
    codec: str = "f32"

    @property
    def dim(self) -> int:
        return self.rank + self.turned

    @property
    def share(self) -> int:
        return self.heads // self.kv_heads

    def new_cache(self, num_tokens: int, num_sequences: int = 1, retention: RetentionSpec = ALL) -> KvCache:
        """A cache of which every byte says NaN."""
        layer = LayerSpec("mla", self.heads, 1, self.dim, 0)
        model = ModelSpec("deepseek_v2", 10, 64, 64, num_tokens, (layer,))
        spec = CacheSpec(self.codec, retention=retention)
        cache = KvCache(model, spec, num_tokens=num_tokens, num_sequences=num_sequences)
        cache.store.arena[:] = 0xFF
        return cache


def attend(
    kind: Latents,
    parts: Many[tuple[Sequence, Array, Array, Array]],
    norm: Array,
    *,
    tile_rows: int = 16,
    split_rows: int = 4,
    split_chunks: int = 2,
    scale: float = 0.25,
) -> Array:
    """Append rows to each sequence; return what they attend to [rows, H, rank].

    A part's rows are absorbed queries [T, H, rank], their rotated parts [T, H, turned] and latents with their rotated
    part [T, rank + turned], which nothing turns here.
    """
    dim, share, kv_heads = kind.dim, kind.share, kind.kv_heads
    for sequence, q, _, _ in parts:
        sequence.grow(len(q))
    cache = parts[0][0].cache
    lowered = lower(
        [Part(sequence, [0] * len(q)) for sequence, q, _, _ in parts],
        tile_rows=tile_rows, split_rows=split_rows, split_chunks=split_chunks,
    )  # fmt: skip
    rows, codec = lowered.num_rows, spans.CODECS[kind.codec]
    weights, work = Arena(), new_work()
    scale_at, eps_at = weights.put(np.array([scale], np.float32)), weights.put(np.array([EPS]))
    norm_at = weights.put(norm)
    absorbed = np.concatenate([part[1] for part in parts]).reshape(rows, kv_heads, share, kind.rank)
    queries = np.zeros((kv_heads, rows, share, dim), np.float32)
    queries[..., : kind.rank] = absorbed.swapaxes(0, 1)
    angles = np.concatenate([np.ones((rows, kind.turned // 2)), np.zeros((rows, kind.turned // 2))], axis=1)
    angles_at = work.put(angles.astype(np.float32))
    own, latents = (work.put(np.concatenate([part[n] for part in parts])) for n in (2, 3))
    q_at, sink_q_at = work.put(queries), work.room(rows, kind.heads, dim)
    out = work.room(rows, kind.heads, kind.rank)
    records = (cache.num_tokens // SPAN_TOKENS + 2) * rows * kind.heads
    kept = work.room(records, attention.num_record_bytes(kind.rank), dtype=np.uint8)
    needed = attention.scratch_bytes(kind.rank, tile_rows * share) + latent.scratch_bytes(dim)
    lowered.table[SCRATCH] = work.room(needed, dtype=np.uint8)
    place = cache.store.places[0]
    arenas = {"weights": weights, "work": work, "table": lowered.table, "cache": cache.store.arena}
    heads = {
        "group": 0, "kv_heads": kv_heads, "share": share, "q": q_at, "q_head": rows * share * dim * 4,
        "sink_q": sink_q_at, "k": place.k, "k_block": place.k_block, "window": 0,
    }  # fmt: skip
    run_line(
        made(latent.latent_append_kernel, dim, kind.rank, codec), latent.LATENT,
        lowered.num_row_chunks * kv_heads,
        latents=latents, latents_stride=dim * 4, queries=own, queries_stride=kind.heads * kind.turned * 4,
        query_head=kind.turned * 4, own=0, angles=angles_at, angles_stride=kind.turned * 4, sink_angles=angles_at,
        turned=kind.turned, scale=scale_at, norm=norm_at, eps=eps_at, **heads, **arenas,
    )  # fmt: skip
    common = {
        "out": out, "out_stride": kind.heads * kind.rank * 4, "parts": kept, "share": share, "window": 0,
        "quantised": -1, "quantised_stride": 0, "width": kind.heads * kind.rank, "nothing": -1,
    }  # fmt: skip
    run_line(
        made(latent.latent_attention_kernel, dim, kind.rank, codec, share), attention.AT,
        lowered.num_tile_parts * kv_heads, k_head=0, v=0, v_head=0, v_block=0,
        cap=-1, chunks_ahead=1, **{**heads, **common}, **arenas,
    )  # fmt: skip
    run_line(
        made(attention.finish_kernel, kind.rank, spans.CODEC_F32), attention.FIN, lowered.num_split_rows,
        heads=kind.heads, chunk_heads=kind.heads, **common, **arenas,
    )  # fmt: skip
    for sequence, *_ in parts:
        sequence.drop_unseen()
    return work.get(out, rows, kind.heads, kind.rank)


def keys_of(kind: Latents, latents: Array, norm: Array) -> Array:
    """The keys [T, D] that latents with their rotated part are stored as."""
    squares = np.zeros((len(latents), 16), np.float32)
    for i in range(0, kind.rank, 16):
        x = latents[:, i : i + 16]
        squares = simd_numpy.fma(x, x, squares)
    total = np.array([simd_numpy.sum_lanes(line[None]) for line in squares], np.float32)
    factor = np.float32(1) / np.sqrt(total / np.float32(kind.rank) + EPS)
    keys = latents.copy()
    keys[:, : kind.rank] = latents[:, : kind.rank] * factor[:, None] * norm
    return stored(keys[:, None], kind.codec)[:, 0]


def queries_of(kind: Latents, absorbed: Array, own: Array, scale: float) -> Array:
    """[T, H, D]"""
    return np.concatenate([absorbed, own], axis=-1) * np.float32(scale)


def visible(retention: RetentionSpec, position: int) -> list[range]:
    """The units of the softmax of a query: the sinks, then the spans' visible parts."""
    window = retention.window_at(position)
    sinks = retention.num_sinks if window is not None else 0
    low = 0 if window is None else max(sinks, position - window + 1)
    first = [range(min(sinks, position + 1))] if sinks else []
    starts = range(low // SPAN_TOKENS * SPAN_TOKENS, position + 1, SPAN_TOKENS)
    return first + [range(max(low, start), min(position + 1, start + SPAN_TOKENS)) for start in starts]


def expected(kind: Latents, q: Array, keys: Array, retention: RetentionSpec = ALL) -> Array:
    """[T, H, rank] in float64, from queries [T, H, D] and keys [T, D]."""
    out = np.zeros((*q.shape[:2], kind.rank))
    for position in range(len(q)):
        seen = [t for unit in visible(retention, position) for t in unit]
        scores = q[position].astype(np.float64) @ keys[seen].astype(np.float64).T
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[position] = weights / weights.sum(axis=-1, keepdims=True) @ keys[seen, : kind.rank].astype(np.float64)
    return out


def twin(kind: Latents, q: Array, keys: Array) -> Array:
    """[rank]: what a query [D] attends to over keys [T, D] of one span, bit for bit."""
    scores, count = float_scores(q, keys), len(keys)
    lanes = -(-count // 16) * 16
    weights = np.zeros(lanes, np.float32)
    weights[:count] = exp_of(scores - scores.max(), "f32")
    values = np.zeros((lanes, kind.rank), np.float32)
    values[:count] = keys[:, : kind.rank]
    total, sums = np.zeros((1, 16), np.float32), np.zeros((kind.rank, 16), np.float32)
    for first in range(0, lanes, 16):
        share = weights[None, first : first + 16]
        total = total + share
        sums = simd_numpy.fma(np.repeat(share, kind.rank, axis=0), values[first : first + 16].T, sums)
    added = np.array([simd_numpy.sum_lanes(line[None]) for line in sums], np.float32) + np.float32(0)
    return added * (np.float32(1) / simd_numpy.sum_lanes(total))
