"""What append makes of a row: queries normed, turned and scaled; keys and values in their slots, and nowhere else."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from proof.heads import Heads
from proof.line import Arena, made, new_work, run_line
from proof.twin import bf16
from tiny.stream import Stream

from kvist.cache import codec as codecs
from kvist.cache.cells import Cells, key_cells, value_cells
from kvist.kernels import blocks, span_bf16, spans
from kvist.kernels.layout import BLOCK_TOKENS, SCRATCH, STATUS
from kvist.model.table import Part, lower
from kvist.spec.cache import CODECS

Array = np.ndarray[Any, Any]
ULP = 2.0**-24
ROWS, HELD = 7, 13
EPS = np.float32(1e-5)


def turned(x: Array, cosine: Array, sine: Array) -> Array:
    """Dims i and i + half of x [T, H, D] turned by row's angles [T, half], each step rounded to f32."""
    half = cosine.shape[1]
    c, s = cosine[:, None], sine[:, None]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([a * c - b * s, b * c + a * s, rest], axis=-1)


def normed(x: Array, weight: Array) -> Array:
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + EPS) * weight


def append(
    heads: Heads, q: Array, k: Array, v: Array, cosine: Array, sine: Array, weights_qk: list[Array] | None
) -> Any:
    """Run append after HELD tokens; return (queries [T, H, D], the cache, the sequence, the status)."""
    cache = heads.new_cache(64, 2)
    other, sequence = cache.new_sequence(), cache.new_sequence()
    other.grow(3)
    sequence.grow(HELD)
    sequence.grow(len(q))
    lowered = lower([Part(sequence, [0] * len(q))], tile_rows=16, split_rows=4, split_chunks=1)
    weights, work = Arena(), new_work()
    scale, eps = weights.put(np.array([0.25], np.float32)), weights.put(np.array([EPS]))
    norms = [weights.put(weight) for weight in weights_qk] if weights_qk else [-1, -1]
    qkv = work.put(np.concatenate([x.reshape(len(x), -1) for x in (q, k, v)], axis=1))
    angles = work.put(np.concatenate([cosine, sine], axis=1))
    out = work.room(heads.kv_heads, len(q), heads.share, heads.dim)
    lowered.table[SCRATCH] = work.room(16 * heads.dim)
    constants = heads.dim, spans.CODECS[heads.k_codec], spans.CODECS[heads.v_codec]
    run_line(
        made(blocks.append_kernel, *constants), blocks.AP, len(q) * heads.kv_heads, weights=weights, work=work,
        table=lowered.table, cache=cache.store.arena, kv_heads=heads.kv_heads, share=heads.share, qkv=qkv,
        qkv_stride=(heads.num_heads + 2 * heads.kv_heads) * heads.dim * 4, q=out,
        q_head=len(q) * heads.share * heads.dim * 4, angles=angles, sink_q=0, sink_angles=0, window=0,
        angles_stride=8 * cosine.shape[1], turned=2 * cosine.shape[1], scale=scale, q_norm=norms[0],
        k_norm=norms[1], eps=eps, **dataclasses.asdict(cache.store.places[0]),
    )  # fmt: skip
    queries = work.get(out, heads.kv_heads, len(q), heads.share, heads.dim).swapaxes(0, 1).reshape(q.shape)
    return queries, cache, sequence, int(work.get(STATUS, 1, dtype=np.int64)[0])


def raw_tokens(cache: Any, sequence: Any, heads: Heads) -> tuple[Array, Array]:
    """The bytes of the keys and values that the sequence's blocks hold, [T, K, bytes]."""
    found = []
    for half, cells in zip(cache.store.halves[0], cells_of(heads), strict=True):
        tokens = []
        for position in range(sequence.num_tokens):
            block, slot = int(sequence.tables[0].blocks[position // BLOCK_TOKENS]), position % BLOCK_TOKENS
            parts = [cell.view(half)[0, :, block, slot // cell.width, :, slot % cell.width] for cell in cells]
            tokens.append(np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts], axis=-1))
        found.append(np.array(tokens))
    return found[0], found[1]


def cells_of(heads: Heads) -> tuple[tuple[Cells, ...], tuple[Cells, ...]]:
    return key_cells(heads.k_codec, heads.dim), value_cells(heads.v_codec, heads.dim)


def slots(cache: Any, sequence: Any, heads: Heads) -> tuple[Array, Array]:
    """Keys and values that the sequence's blocks hold [T, K, D] as f32."""
    keys, values = raw_tokens(cache, sequence, heads)
    shape = sequence.num_tokens, heads.kv_heads, heads.dim
    decoded = (
        codecs.CODECS[heads.k_codec].decode_keys(keys.reshape(-1, keys.shape[-1])),
        codecs.CODECS[heads.v_codec].decode_values(values.reshape(-1, values.shape[-1])),
    )
    return decoded[0].reshape(shape), decoded[1].reshape(shape)


def numbers(heads: Heads) -> tuple[Array, Array, Array]:
    sizes = {"q": heads.num_heads, "k": heads.kv_heads, "v": heads.kv_heads}
    q, k, v = (Stream(2, name).normal((ROWS, size, heads.dim)) for name, size in sizes.items())
    return q, k, v


def angles(half: int) -> tuple[Array, Array]:
    x = Stream(2, "angles").normal((ROWS, half)).astype(np.float64)
    return np.cos(x).astype(np.float32), np.sin(x).astype(np.float32)


def encoded(keys: Array, values: Array, heads: Heads) -> tuple[Array, Array]:
    """The bytes that [T, K, D] become, by the codecs in NumPy."""
    k, v = codecs.CODECS[heads.k_codec], codecs.CODECS[heads.v_codec]
    raw = k.encode_keys(keys.reshape(-1, heads.dim)), v.encode_values(values.reshape(-1, heads.dim))
    return raw[0].reshape(*keys.shape[:2], -1), raw[1].reshape(*values.shape[:2], -1)


@pytest.mark.parametrize("half", [0, 4, 8, 16, 32], ids=lambda half: f"{2 * half} dims turned")
@pytest.mark.parametrize("codec", CODECS)
def test_rows_are_turned_scaled_and_stored_to_the_bit(codec: str, half: int) -> None:
    check_rows(Heads(64, 3, k_codec=codec, v_codec=codec), half)


@pytest.mark.parametrize(("k_codec", "v_codec"), [("int8", "int4"), ("int4", "int8"), ("bf16", "int4")])
@pytest.mark.parametrize("dim", [16, 80])
def test_other_pairs_and_widths(dim: int, k_codec: str, v_codec: str) -> None:
    check_rows(Heads(dim, 2, k_codec=k_codec, v_codec=v_codec), 8)


def check_rows(heads: Heads, half: int) -> None:
    """Queries, keys and values as they are to be, and no byte of another token written."""
    (q, k, v), (cosine, sine) = numbers(heads), angles(half)
    queries, cache, sequence, status = append(heads, q, k, v, cosine, sine, None)
    assert status == 0
    wanted = turned(q, cosine, sine) * np.float32(0.25)
    if heads.k_codec in ("int8", "int4"):
        check_codes(queries, wanted)
    elif heads.k_codec == "bf16" and not span_bf16.IS_PACKED:
        assert np.array_equal(queries, bf16(wanted))
    elif heads.k_codec == "bf16":
        halves = np.ascontiguousarray(queries).view(np.uint16)[..., : heads.dim]
        assert np.array_equal(halves, bf16(wanted).view(np.uint32) >> 16)
    else:
        assert np.array_equal(queries, wanted)
    keys, values = raw_tokens(cache, sequence, heads)
    expected_keys, expected_values = encoded(turned(k, cosine, sine), v, heads)
    assert np.array_equal(keys[HELD:], expected_keys)
    assert np.array_equal(values[HELD:], expected_values)
    assert (keys[:HELD] == 0xFF).all()
    assert (values[:HELD] == 0xFF).all()
    assert (cache.store.arena != 0xFF).sum() <= expected_keys.size + expected_values.size


def check_codes(queries: Array, wanted: Array) -> None:
    """A query as bytes, its scale, and the sum of its numbers."""
    dim = wanted.shape[-1]
    turned_q = codecs.turn(wanted.reshape(-1, dim))
    scale = np.abs(turned_q).max(axis=1, keepdims=True)
    numbers = np.rint(turned_q * (np.float32(127) / scale))
    raw = np.ascontiguousarray(queries).view(np.uint8).reshape(len(numbers), -1)
    assert np.array_equal(raw[:, :dim].view(np.int8), numbers)
    assert np.array_equal(np.ascontiguousarray(raw[:, dim : dim + 4]).view(np.float32), scale / np.float32(127))
    assert np.array_equal(np.ascontiguousarray(raw[:, dim + 4 : dim + 8]).view(np.int32)[:, 0], numbers.sum(axis=1))


def test_norms_of_queries_and_keys() -> None:
    """Before rotation; one sum of squares, a root, a division and two products apart from exact."""
    heads = Heads(64, 3)
    (q, k, v), (cosine, sine) = numbers(heads), angles(32)
    weights_qk = [Stream(2, name).normal((64,)) + 1 for name in ("q norm", "k norm")]
    queries, cache, sequence, _ = append(heads, q, k, v, cosine, sine, weights_qk)
    keys, _ = slots(cache, sequence, heads)
    for found, x, weight, scale in ((queries, q, weights_qk[0], 0.25), (keys[HELD:], k, weights_qk[1], 1)):
        exact = turned(normed(x, weight), cosine.astype(np.float64), sine.astype(np.float64)) * scale
        assert np.abs(found - exact).max() <= 16 * ULP * np.abs(normed(x, weight)).max() * scale


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", [0, 1, 2], ids=["q", "k", "v"])
@pytest.mark.parametrize("codec", ["f32", "int8", "int4"])
def test_what_is_not_finite_is_reported_with_its_row(codec: str, which: int, bad: float) -> None:
    heads = Heads(64, 3, k_codec=codec, v_codec=codec)
    for dim in (0, 17, 63):
        qkv = numbers(heads)
        qkv[which][3, -1, dim] = bad
        assert append(heads, *qkv, *angles(0), None)[3] == 1 + (3 << 32)
