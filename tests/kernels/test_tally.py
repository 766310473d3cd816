"""Tallies of attention against softmax weights in float64, and to the number whatever the division into passes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proof.heads import Heads, stored
from proof.line import Arena, made, new_work, run_line
from proof.twin import bf16
from tiny.stream import Stream

from kvist.cache.sequence import Sequence
from kvist.kernels import blocks, spans, tally
from kvist.kernels.layout import SCRATCH, SPAN_TOKENS
from kvist.model.table import Part, lower
from kvist.model.tallying import Tallying, tallied
from kvist.spec.retention import RetentionSpec

Array = np.ndarray[Any, Any]
LENGTH = 330
SHAPES = [Heads(16, 3), Heads(16, 1), Heads(64, 3, k_codec="bf16", v_codec="bf16"), Heads(32, 8), Heads(16, 3, cap=1.5)]
NEVER = RetentionSpec("h2o", 1 << 20)
"""Tallies everything and never chooses."""


def numbers(heads: Heads) -> tuple[Array, Array, Array]:
    sizes = {"q": heads.num_heads, "k": heads.kv_heads, "v": heads.kv_heads}
    q, k, v = (Stream(6, name).normal((LENGTH, size, heads.dim)) for name, size in sizes.items())
    return q, k, v


def add_rows(heads: Heads, sequence: Sequence, q: Array, k: Array, v: Array, unit_rows: int) -> None:
    """Append rows to a sequence and tally their attention."""
    sequence.grow(len(q))
    parts, dim, share = [Part(sequence, [0] * len(q))], heads.dim, heads.share
    lowered = lower(parts, tile_rows=16, split_rows=0, split_chunks=1)
    tallying = Tallying(lowered.table, tallied(parts), num_threads=1, unit_rows=unit_rows)
    codecs = spans.CODECS[heads.k_codec], spans.CODECS[heads.v_codec]
    weights, work = Arena(), new_work()
    scale, eps = weights.put(np.array([1 / np.sqrt(dim)], np.float32)), weights.put(np.zeros(1, np.float32))
    cap = weights.put(np.array([heads.cap], np.float32))
    qkv = work.put(np.concatenate([x.reshape(len(x), -1) for x in (q, k, v)], axis=1))
    scratch = tally.scratch_bytes(-(-LENGTH // SPAN_TOKENS), share) + 8 * dim
    tallying.table[SCRATCH] = work.room(scratch, dtype=np.uint8)
    place = {"q": work.room(len(q), heads.num_heads, dim), "q_head": len(q) * share * dim * 4}
    place |= dataclasses.asdict(sequence.cache.store.places[0]) | {"kv_heads": heads.kv_heads, "share": share}
    arenas = {"weights": weights, "work": work, "table": tallying.table, "cache": sequence.cache.store.arena}
    run_line(
        made(blocks.append_kernel, dim, *codecs), blocks.AP, len(q) * heads.kv_heads, qkv=qkv,
        qkv_stride=(heads.num_heads + 2 * heads.kv_heads) * dim * 4, angles=0, angles_stride=0, turned=0, scale=scale,
        q_norm=-1, k_norm=-1, eps=eps, window=0, sink_q=0, sink_angles=0, **place, **arenas,
    )  # fmt: skip
    run_line(
        made(tally.tally_kernel, dim, *codecs, share, int(heads.cap > 0)), tally.TALLY,
        tallying.num_units * heads.kv_heads, cap=cap if heads.cap else -1, **place, **arenas,
    )  # fmt: skip
    tallying.give()


def tally_of(heads: Heads, qkv: tuple[Array, Array, Array], sizes: list[int], unit_rows: int = 8) -> Array:
    """The tally of a new sequence whose rows come in pieces, the last size again and again."""
    sequence = heads.new_cache(LENGTH).new_sequence(retention=NEVER)
    queue, size, start = iter(sizes), 1, 0
    while start < LENGTH:
        size = next(queue, size)
        add_rows(heads, sequence, *(x[start : start + size] for x in qkv), unit_rows)
        start += size
    return sequence.attended[0].tally


def expected(heads: Heads, q: Array, k: Array) -> Array:
    """Sums of weights by token in float64; a query meets bf16 keys as bf16."""
    if heads.k_codec == "bf16":
        q = bf16(q * np.float32(1 / np.sqrt(heads.dim))) * np.sqrt(heads.dim)
    keys = np.repeat(stored(k, heads.k_codec).astype(np.float64), heads.share, axis=1)
    scores = np.einsum("thd,shd->hts", q.astype(np.float64), keys) / np.sqrt(heads.dim)
    if heads.cap:
        scores = heads.cap * np.tanh(scores / heads.cap)
    scores[:, np.arange(LENGTH)[:, None] < np.arange(LENGTH)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray((weights / weights.sum(axis=-1, keepdims=True)).sum(axis=(0, 1)))


@pytest.mark.parametrize("heads", SHAPES, ids=lambda heads: f"{heads.dim}x{heads.share} {heads.k_codec} {heads.cap:g}")
def test_tally(heads: Heads) -> None:
    """A weight is off by its exp's and its sum's rounding, and by half a unit."""
    q, k, v = numbers(heads)
    found = tally_of(heads, (q, k, v), [100])
    exact = expected(heads, q, k)
    assert np.abs(found / tally.ONE - exact).max() <= (exact * 32 + LENGTH * heads.num_heads).max() * 2.0**-24
    assert found.sum() == pytest.approx(LENGTH * heads.num_heads * float(tally.ONE), rel=1e-5)


WHOLE = Heads(16, 3)


@settings(max_examples=10, deadline=None)
@given(sizes=st.lists(st.integers(1, 6) | st.integers(1, 200), min_size=1, max_size=20), unit_rows=st.integers(1, 42))
def test_any_division_gives_the_same_numbers(sizes: list[int], unit_rows: int) -> None:
    qkv = numbers(WHOLE)
    assert (tally_of(WHOLE, qkv, sizes, unit_rows) == tally_of(WHOLE, qkv, [LENGTH])).all()


def test_one_certain_query_counts_one() -> None:
    heads = Heads(16, 1)
    q, k, v = (np.zeros((LENGTH, size, 16), np.float32) for size in (2, 2, 2))
    k[0], q[:] = 100, 100  # all weight is the first token's, until keys are all alike
    assert tally_of(heads, (q, k, v), [64])[0] == 2 * LENGTH * tally.ONE


def test_only_the_prompts_end_is_tallied_for_snapkv() -> None:
    heads = Heads(16, 3)
    q, k, v = numbers(heads)
    sequence = heads.new_cache(LENGTH).new_sequence(retention=RetentionSpec("snapkv", 200), prompt_tokens=300)
    for start in range(0, 300, 100):
        add_rows(heads, sequence, *(x[start : start + 100] for x in (q, k, v)), 8)
        rows = max(0, start + 100 - (300 - 32))
        assert sequence.attended[0].tally.sum() == pytest.approx(rows * heads.num_heads * float(tally.ONE), rel=1e-4)
