"""Latent attention against a softmax in float64, its twin bit for bit, and itself however its rows are divided."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proof.latents import Latents, attend, expected, keys_of, queries_of, twin
from proof.line import Arena, made, new_table, new_work, run_line
from tiny.stream import Stream

from kvist.kernels import latent, matmul
from kvist.kernels.layout import NUM_ROWS
from kvist.model import convert
from kvist.spec.retention import ALL, RetentionSpec

Array = np.ndarray[Any, Any]
LENGTH = 560
KINDS = [Latents(), Latents(codec="bf16", heads=6, kv_heads=2)]
SCALE = 0.25


def numbers(kind: Latents, length: int = LENGTH, key: str = "") -> tuple[Array, Array, Array]:
    """Absorbed queries, their rotated parts, and latents with theirs, of a sequence."""
    stream = Stream(8, key)
    shapes = ((length, kind.heads, kind.rank), (length, kind.heads, kind.turned), (length, kind.dim))
    q, own, latents = (stream.normal(shape) for shape in shapes)
    return q, own, latents


def norm_of(kind: Latents) -> Array:
    return 1 + Stream(9).normal((kind.rank,)) * np.float32(0.3)


def in_pieces(
    kind: Latents, rows: tuple[Array, ...], sizes: list[int], retention: RetentionSpec = ALL, **settings: int
) -> Array:
    """What a new sequence's rows attend to, appended in pieces, the last size again and again."""
    sequence, found, start = kind.new_cache(LENGTH, retention=retention).new_sequence(), [], 0
    queue, size = iter(sizes), 1
    while start < len(rows[0]):
        size = next(queue, size)
        piece = [x[start : start + size] for x in rows]
        found.append(attend(kind, [(sequence, *piece)], norm_of(kind), scale=SCALE, **settings))
        start += size
    return np.concatenate(found)


@pytest.mark.parametrize("retention", [ALL, RetentionSpec("window", 100), RetentionSpec("sinks", 257, 20)], ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.codec)
def test_attention(kind: Latents, retention: RetentionSpec) -> None:
    """Tolerance as for other attention: the rounding of scores up to about 12, of exp and of the sums."""
    rows = numbers(kind)
    keys = keys_of(kind, rows[2], norm_of(kind))
    exact = expected(kind, queries_of(kind, rows[0], rows[1], SCALE), keys, retention)
    for sizes in ([40], [250, 1, 3, 4, 2, 5, 256]):
        found = in_pieces(kind, rows, sizes, retention)
        allowed = (8 + 6 * 12 + 24) * 2.0**-24 * np.abs(keys).max()
        assert np.isfinite(found).all()
        assert np.abs(found - exact).max() <= allowed, (np.abs(found - exact).max(), allowed)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.codec)
@pytest.mark.parametrize("length", [1, 15, 16, 17, 255, 256])
def test_one_span_is_the_twins_to_the_bit(kind: Latents, length: int) -> None:
    rows = numbers(kind, length)
    keys = keys_of(kind, rows[2], norm_of(kind))
    found = in_pieces(kind, rows, [length])[-1]
    for head, q in enumerate(queries_of(kind, rows[0], rows[1], SCALE)[-1]):
        assert found[head].tobytes() == twin(kind, q, keys).tobytes()


@settings(max_examples=20)
@pytest.mark.parametrize(
    ("kind", "retention"), [(KINDS[0], ALL), (KINDS[1], ALL), (KINDS[1], RetentionSpec("sinks", 100, 20))], ids=str
)
@given(data=st.data())
def test_any_division_gives_the_same_bytes(kind: Latents, retention: RetentionSpec, data: st.DataObject) -> None:
    rows = numbers(kind)
    whole = in_pieces(kind, rows, [256], retention)
    sizes = data.draw(st.lists(st.integers(1, 6) | st.integers(1, 256), min_size=1, max_size=30))
    division = {
        "tile_rows": data.draw(st.sampled_from([2, 4, 6, 16])),
        "split_rows": data.draw(st.sampled_from([0, 1, 4, 7])),
        "split_chunks": data.draw(st.sampled_from([1, 2, 5])),
    }
    assert in_pieces(kind, rows, sizes, retention, **division).tobytes() == whole.tobytes()


def test_values_that_vanish_are_positive_zeros() -> None:
    """Products that are too small to be numbers: the sign of what is left mustn't tell who was in the tile."""
    kind = Latents()
    rows = numbers(kind, 40)
    tiny = norm_of(kind) * np.float32(-1e-44)
    found = []
    for sizes in (range(1, 41), (20, 40), (40,)):
        sequence, out = kind.new_cache(LENGTH).new_sequence(), []
        for start, end in zip((0, *sizes[:-1]), sizes, strict=True):
            out.append(attend(kind, [(sequence, *(x[start:end] for x in rows))], tiny))
        found.append(np.concatenate(out).tobytes())
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("form", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("num_rows", [1, 2, 9])
def test_each_head_has_a_matrix_of_its_own(form: str, num_rows: int) -> None:
    """Within float32's rounding of a sum of 24 products, at most 2 x 24 x 2^-24 of the sum of their sizes."""
    heads, inputs, outputs = 3, 24, 32
    matrices = Stream(2).normal((heads * outputs, inputs))
    x = Stream(3).normal((num_rows, heads, inputs + 16))
    raw = convert.from_f32(matrices, form)
    kept = convert.to_f32(raw.reshape(len(matrices), -1), form).reshape(heads, outputs, inputs)
    panels = np.zeros((heads * outputs // 16, 32, 16), np.float32)
    panels[:, :inputs] = kept.reshape(-1, 16, inputs).swapaxes(1, 2)
    weights, work = Arena(), new_work()
    if form == "bf16":
        panels = panels.reshape(-1, 16, 2, 16).swapaxes(2, 3)
    w = weights.put(convert.from_f32(np.ascontiguousarray(panels).reshape(-1, 32), form))
    rows = np.concatenate([x.reshape(num_rows, -1), np.zeros((num_rows, 32), np.float32)], axis=1)
    at, out = work.put(rows), work.room(num_rows, heads, outputs)
    for chunk_panels in (1, 2):
        run_line(
            made(latent.heads_kernel, matmul.FORMS[form]), latent.HEADS, heads * (outputs // 16 // chunk_panels),
            w=w, heads=heads, panels=outputs // 16, width=32, x=at, x_head=(inputs + 16) * 4,
            x_stride=rows.shape[1] * 4, out=out,
            out_stride=heads * outputs * 4, share=heads, out_outer=0, out_inner=outputs * 4,
            chunk_panels=chunk_panels, weights=weights, work=work, table=new_table(**{str(NUM_ROWS): num_rows}),
        )  # fmt: skip
        found = work.get(out, num_rows, heads, outputs)
        exact = np.einsum("thi,hoi->tho", x[..., :inputs].astype(np.float64), kept.astype(np.float64))
        sizes = np.einsum("thi,hoi->tho", np.abs(x[..., :inputs]), np.abs(kept))
        assert (np.abs(found - exact) <= 2 * inputs * 2.0**-24 * sizes).all()
