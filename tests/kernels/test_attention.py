"""Attention against a softmax in float64, and against itself: however its rows are divided, the same bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proof.heads import Heads, attend, expected
from proof.twin import attended
from tiny.stream import Stream

Array = np.ndarray[Any, Any]
SHAPES = [
    *(Heads(dim, share) for dim, share in ((16, 1), (16, 3), (32, 8), (64, 4), (80, 4), (128, 2))),
    *(Heads(dim, 3, k_codec="bf16", v_codec="bf16") for dim in (16, 64)),
    Heads(16, 3, cap=1.5),
]
"""Kinds that other tests compile too: a kind takes seconds. ``make sweeps`` has the others."""
WINDOWS = (None, 1, 5, 16, 100, 257, 300)
LENGTH = 560
ROWS = [0, 1, 15, 16, 100, 254, 255, 256, 257, 511, 512, LENGTH - 1]


def names(heads: Heads) -> str:
    return f"{heads.dim}x{heads.share} {heads.k_codec}" + (f" below {heads.cap:g}" if heads.cap else "")


def numbers(heads: Heads, length: int = LENGTH, key: str = "") -> tuple[Array, Array, Array]:
    """q, k and v of a sequence, normal."""
    sizes = {"q": heads.num_heads, "k": heads.kv_heads, "v": heads.kv_heads}
    q, k, v = (Stream(4, name + key).normal((length, size, heads.dim)) for name, size in sizes.items())
    return q, k, v


def in_pieces(heads: Heads, qkv: tuple[Array, Array, Array], sizes: list[int], **settings: int) -> Array:
    """What a new sequence's rows attend to, appended in pieces, the last size again and again."""
    sequence, found, start = heads.new_cache(LENGTH).new_sequence(), [], 0
    queue, size = iter(sizes), 1
    while start < len(qkv[0]):
        size = next(queue, size)
        piece = [x[start : start + size] for x in qkv]
        found.append(attend(heads, [(sequence, *piece)], **settings))
        start += size
    return np.concatenate(found)


def check(found: Array, exact: Array, values: Array, largest_score: float) -> None:
    """A weight is off by the rounding of its score (some steps of 2^-24 of the largest), of its exp and of the sum."""
    allowed = (8 + 6 * largest_score + 24) * 2.0**-24 * np.abs(values).max()
    assert np.isfinite(found).all()
    assert np.abs(found - exact).max() <= allowed, (np.abs(found - exact).max(), allowed)


def reference(heads: Heads, qkv: tuple[Array, Array, Array]) -> tuple[list[int], Array]:
    """Rows, and what they get in float64; in bf16 some of them, by the twin, which rounds queries and weights."""
    if heads.k_codec == "bf16":
        return ROWS, attended(heads, *qkv, ROWS)
    return list(range(LENGTH)), expected(heads, *qkv)


@pytest.mark.parametrize("heads", SHAPES, ids=names)
def test_attention(heads: Heads) -> None:
    for window in WINDOWS:
        kind = dataclasses.replace(heads, window=window)
        qkv = numbers(kind)
        rows, exact = reference(kind, qkv)
        for sizes in ([40], [250, 1, 3, 4, 2, 5, 256]):
            check(in_pieces(kind, qkv, sizes)[rows], exact, qkv[2], 6)


@pytest.mark.parametrize("size", [8.0, 40.0])
def test_scores_far_apart(size: float) -> None:
    """A softmax of which nearly all weight is one token's, also across spans; far below it exp stops at e^-87."""
    heads = Heads(16, 3)
    q, k, v = numbers(heads)
    q = q * np.float32(size)
    check(in_pieces(heads, (q, k, v), [40]), expected(heads, q, k, v), v, 5 * size)


SMALL = [Heads(16, 3, kv_heads=1, window=window, k_codec="bf16", v_codec="bf16") for window in (None, 20, 100, 270)]


@settings(max_examples=20)
@pytest.mark.parametrize("heads", SMALL, ids=lambda heads: str(heads.window))
@given(data=st.data())
def test_any_division_gives_the_same_bytes(heads: Heads, data: st.DataObject) -> None:
    check_division(heads, data)


def check_division(heads: Heads, data: st.DataObject) -> None:
    qkv = numbers(heads)
    whole = in_pieces(heads, qkv, [256])
    sizes = data.draw(st.lists(st.integers(1, 6) | st.integers(1, 256), min_size=1, max_size=30))
    division = {
        "tile_rows": data.draw(st.sampled_from([2, 4, 6, 16])),
        "split_rows": data.draw(st.sampled_from([0, 1, 4, 7])),
        "split_chunks": data.draw(st.sampled_from([1, 2, 5])),
    }
    assert in_pieces(heads, qkv, sizes, **division).tobytes() == whole.tobytes()


CODED = [
    Heads(64, 3, k_codec="bf16", v_codec="int8"),
    Heads(16, 3, k_codec="int8", v_codec="int8"),
    Heads(16, 3, k_codec="int4", v_codec="int4"),
    Heads(16, 3, k_codec="int8", v_codec="int8", cap=1.5),
    Heads(64, 3, k_codec="int8", v_codec="int8"),
    Heads(64, 3, k_codec="int4", v_codec="int4"),
    Heads(80, 2, k_codec="int8", v_codec="int4"),
    Heads(32, 1, k_codec="int4", v_codec="bf16"),
]


@pytest.mark.parametrize("heads", CODED, ids=lambda h: f"{names(h)}-{h.v_codec}")
def test_what_is_rounded_is_multiplied_as_the_twin_multiplies_it(heads: Heads) -> None:
    check_twin(heads, (None, 5, 300))


def check_twin(heads: Heads, windows: Sequence[int | None]) -> None:
    """1e-5 of the largest value: the twin's weights are the same bytes, its sums are float64.

    From attention in float over the decoded cache it is 1.5 % off at most, root mean square: that of the query's and
    the weights' bytes, or of their bf16.
    """
    for window in windows:
        kind = dataclasses.replace(heads, window=window)
        q, k, v = numbers(kind)
        q *= np.float32(2)
        found = in_pieces(kind, (q, k, v), [40, 3, 1, 250])
        twin = attended(kind, q, k, v, ROWS)
        assert np.abs(found[ROWS] - twin).max() <= 1e-5 * np.abs(v).max()
        off = np.sqrt(np.mean((found - expected(kind, q, k, v)) ** 2))
        assert off <= 0.015 * np.sqrt(np.mean(found**2))


CODED_SMALL = [
    Heads(16, 3, kv_heads=1, window=window, k_codec=codec, v_codec=codec)
    for window, codec in ((None, "int8"), (100, "int8"), (20, "int4"), (270, "int4"))
]


@settings(max_examples=20)
@pytest.mark.parametrize("heads", CODED_SMALL, ids=lambda heads: f"{heads.window} {heads.k_codec}")
@given(data=st.data())
def test_any_division_of_integers_gives_the_same_bytes(heads: Heads, data: st.DataObject) -> None:
    check_division(heads, data)


def test_several_sequences_in_a_pass() -> None:
    """Each over its own blocks, which lie between the others'; freed ones are taken again."""
    heads = Heads(16, 3, window=100, k_codec="bf16", v_codec="bf16")
    cache = heads.new_cache(LENGTH, 4)
    texts = [numbers(heads, key=str(number)) for number in range(3)]
    alone = [in_pieces(heads, qkv, [256]) for qkv in texts]
    sequences, starts = [cache.new_sequence() for _ in range(3)], [0, 0, 0]
    other = cache.new_sequence()
    for step in range(60):
        counts = [1 + (step * (number + 2) + number) % 9 for number in range(3)]
        parts = [
            (sequence, *(x[start : start + count] for x in qkv))
            for sequence, qkv, start, count in zip(sequences, texts, starts, counts, strict=True)
        ]
        if step % 7 == 3:
            other.grow(20)
        if step % 14 == 13:
            other.release()
        found = attend(heads, parts)
        wanted = [rows[start : start + count] for rows, start, count in zip(alone, starts, counts, strict=True)]
        assert found.tobytes() == np.concatenate(wanted).tobytes()
        starts = [start + count for start, count in zip(starts, counts, strict=True)]
    cache.check()
    assert min(starts) > 256
