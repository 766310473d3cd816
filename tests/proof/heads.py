"""Attention by itself: queries, keys and values as arrays go through the kernels of one layer, over real block tables.

Nothing else of a model takes part: no norms of q and k, no rotation. ``expected`` is the same in float64.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvist.cache import codec as codecs
from kvist.cache.kv_cache import KvCache
from kvist.cache.sequence import Sequence
from kvist.kernels import attention, blocks, spans
from kvist.kernels.layout import SCRATCH
from kvist.model.table import Part, lower
from kvist.spec.cache import CacheSpec
from kvist.spec.model import LayerSpec, ModelSpec
from proof.line import Arena, made, new_work, run_line

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Heads:
    """One layer: ``kv_heads`` of width ``dim``, each shared by ``share`` query heads that see ``window`` tokens."""

    dim: int
    share: int = 1
    kv_heads: int = 2
    window: int | None = None
    k_codec: str = "f32"
    v_codec: str = "f32"
    cap: float = 0.0

    @property
    def num_heads(self) -> int:
        return self.kv_heads * self.share

    def new_cache(self, num_tokens: int, num_sequences: int = 1) -> KvCache:
        """A cache of which every byte says NaN."""
        kind = "full" if self.window is None else "window"
        layer = LayerSpec(kind, self.num_heads, self.kv_heads, self.dim, self.dim, self.window)
        model = ModelSpec("llama", 10, 64, 64, num_tokens, (layer,))
        spec = CacheSpec(k=self.k_codec, v=self.v_codec)
        cache = KvCache(model, spec, num_tokens=num_tokens, num_sequences=num_sequences)
        cache.store.arena[:] = 0xFF
        return cache


def stored(x: Array, codec: str, *, is_key: bool = True) -> Array:
    """What the cache keeps of keys or values [T, H, D]."""
    kept = codecs.CODECS[codec]
    ways = (kept.encode_keys, kept.decode_keys) if is_key else (kept.encode_values, kept.decode_values)
    return ways[1](ways[0](x.reshape(-1, x.shape[-1]))).reshape(x.shape)


def attend(
    heads: Heads,
    parts: Many[tuple[Sequence, Array, Array, Array]],
    *,
    tile_rows: int = 16,
    split_rows: int = 4,
    split_chunks: int = 2,
) -> Array:
    """Append rows of q [T, H, D], k and v [T, K, D] to each sequence; return what they attend to [rows, H, D]."""
    dim, share, kv_heads = heads.dim, heads.share, heads.kv_heads
    for sequence, q, _, _ in parts:
        sequence.grow(len(q))
    cache = parts[0][0].cache
    lowered = lower(
        [Part(sequence, [0] * len(q)) for sequence, q, _, _ in parts],
        tile_rows=tile_rows, split_rows=split_rows, split_chunks=split_chunks,
    )  # fmt: skip
    rows, codecs = lowered.num_rows, (spans.CODECS[heads.k_codec], spans.CODECS[heads.v_codec])
    weights, work = Arena(), new_work()
    scale, eps = weights.put(np.array([1 / np.sqrt(dim)], np.float32)), weights.put(np.zeros(1, np.float32))
    cap = weights.put(np.array([heads.cap], np.float32))
    qkv = work.put(
        np.concatenate([np.concatenate([x.reshape(len(x), -1) for x in part[1:]], axis=1) for part in parts])
    )
    place = {
        "q": work.room(rows, heads.num_heads, dim), "sink_q": work.room(rows, heads.num_heads, dim),
        "q_head": rows * share * dim * 4, "window": heads.window or 0,
    }  # fmt: skip
    out = work.room(rows, heads.num_heads, dim)
    records = (cache.num_tokens // 256 + 2) * rows * heads.num_heads
    kept = work.room(records, spans.RECORD_HEAD + 4 * dim, dtype=np.uint8)
    lowered.table[SCRATCH] = work.room(attention.scratch_bytes(dim, tile_rows * share) + 8 * dim, dtype=np.uint8)
    place |= dataclasses.asdict(cache.store.places[0]) | {"kv_heads": kv_heads, "share": share}
    arenas = {"weights": weights, "work": work, "table": lowered.table, "cache": cache.store.arena}
    run_line(
        made(blocks.append_kernel, dim, *codecs), blocks.AP, rows * kv_heads, qkv=qkv,
        qkv_stride=(heads.num_heads + 2 * kv_heads) * dim * 4, angles=0, sink_angles=0, angles_stride=0,
        turned=0, scale=scale, q_norm=-1, k_norm=-1, eps=eps, **place, **arenas,
    )  # fmt: skip
    common = {
        "out": out, "out_stride": heads.num_heads * dim * 4, "parts": kept,
        "quantised": -1, "quantised_stride": 0, "width": heads.num_heads * dim, "nothing": -1,
    }  # fmt: skip
    kernel = made(attention.attention_kernel, dim, *codecs, share, int(heads.cap > 0))
    run_line(
        kernel, attention.AT, lowered.num_tile_parts * kv_heads, cap=cap if heads.cap else -1,
        chunks_ahead=1, **place, **common, **arenas,
    )  # fmt: skip
    run_line(
        made(attention.finish_kernel, dim, codecs[1]), attention.FIN, lowered.num_split_rows, heads=heads.num_heads,
        chunk_heads=heads.num_heads, share=share, window=heads.window or 0, **common, **arenas,
    )  # fmt: skip
    for sequence, *_ in parts:
        sequence.drop_unseen()
    return work.get(out, rows, heads.num_heads, dim)


def expected(heads: Heads, q: Array, k: Array, v: Array) -> Array:
    """Attention of a whole sequence in float64 [T, H, D], over keys and values as they are stored."""
    keys, values = (
        np.repeat(stored(x, codec, is_key=is_key).astype(np.float64), heads.share, axis=1)
        for x, codec, is_key in ((k, heads.k_codec, True), (v, heads.v_codec, False))
    )
    scores = np.einsum("thd,shd->hts", q.astype(np.float64), keys) / np.sqrt(heads.dim)
    if heads.cap:
        scores = heads.cap * np.tanh(scores / heads.cap)
    past = np.arange(len(q))[:, None] - np.arange(len(q))
    scores[:, (past < 0) | (past >= (heads.window or len(q)))] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("hts,shd->thd", weights / weights.sum(axis=-1, keepdims=True), values)
