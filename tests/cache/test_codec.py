"""Each codec keeps what it promises: its bytes, its bound for any finite numbers, each token by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tiny.stream import Stream

from kvist.cache import codec as codecs
from kvist.cache.codec import Codec
from kvist.spec.cache import CODECS, head_key_bytes, head_value_bytes

Array = np.ndarray[Any, Any]
DIMS = (16, 32, 48, 64, 80, 96, 128, 256)
EACH = pytest.mark.parametrize("codec", codecs.CODECS.values(), ids=codecs.CODECS)
SIZES = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 1e-45, -1e-45, 1e-40, 1.1754944e-38, 3e-37, 1e30, -(2.0**116)]).map(np.float32),
    st.floats(-(2.0**116), 2.0**116, width=32),
    st.floats(-8, 8, width=32),
)
"""Numbers whose sums over a head stay finite."""


@st.composite
def heads(draw: st.DrawFn) -> Array:
    """[T, D]: numbers of all sizes, and what is hard: all zero, all alike, one huge among small ones."""
    dim, num_tokens = draw(st.sampled_from(DIMS)), draw(st.integers(1, 3))
    kind = draw(st.sampled_from(["any", "one size", "alike", "outlier"]))
    if kind == "alike":
        return np.full((num_tokens, dim), draw(SIZES), np.float32)
    if kind == "any":
        return draw(arrays(np.float32, (num_tokens, dim), elements=SIZES))
    x = Stream(draw(st.integers(0, 999)), "heads").normal((num_tokens, dim)) * np.float32(abs(draw(SIZES)) % 1e28)
    if kind == "outlier":
        x[:, draw(st.integers(0, dim - 1))] *= np.float32(10.0 ** draw(st.integers(0, 6)))
    return x


def ways(codec: Codec) -> list[tuple[Any, Any, Any, Any]]:
    """(encode, decode, bound, bytes of a head) of keys, and of values."""
    return [
        (codec.encode_keys, codec.decode_keys, codec.key_bound, head_key_bytes),
        (codec.encode_values, codec.decode_values, codec.value_bound, head_value_bytes),
    ]


@EACH
@given(x=heads())
@example(x=np.zeros((2, 64), np.float32))
@example(x=np.full((1, 16), 1e-45, np.float32))
@example(x=np.eye(1, 64, dtype=np.float32) * np.float32(8e34))
def test_what_comes_back_is_within_the_bound(codec: Codec, x: Array) -> None:
    for encode, decode, bound, num_bytes in ways(codec):
        raw = encode(x)
        assert raw.shape == (len(x), num_bytes(codec.name, x.shape[1]))
        found = decode(raw)
        assert found.dtype == np.float32
        assert found.shape == x.shape
        assert np.isfinite(found).all()
        off = np.abs(found.astype(np.float64) - x).max(axis=1)
        assert (off <= bound(x)).all(), (off, bound(x))


@EACH
@given(x=heads())
def test_a_token_is_encoded_by_itself(codec: Codec, x: Array) -> None:
    for encode, decode, *_ in ways(codec):
        alone = np.concatenate([encode(token) for token in np.split(x, len(x))])
        assert np.array_equal(alone, encode(x))
        assert decode(encode(x[:1])).tobytes() == decode(encode(x))[:1].tobytes()


@EACH
def test_zeros_stay_zeros(codec: Codec) -> None:
    zeros = np.zeros((3, 80), np.float32)
    for encode, decode, *_ in ways(codec):
        assert (decode(encode(zeros)) == 0).all()


@pytest.mark.parametrize("dim", DIMS)
def test_typical_errors(dim: int) -> None:
    """The root mean square error over that of the numbers, for normal ones."""
    x = Stream(1, "typical").normal((500, dim))
    most = {"f32": (0, 0), "bf16": (2e-3, 2e-3), "int8": (8e-3, 8e-3), "int4": (0.055, 0.115)}
    for name, codec in codecs.CODECS.items():
        for (encode, decode, *_), allowed in zip(ways(codec), most[name], strict=True):
            assert np.sqrt(np.mean((decode(encode(x)) - x) ** 2)) <= allowed * np.sqrt(np.mean(x**2))


def test_turning_twice_is_nothing() -> None:
    for dim in DIMS:
        x = Stream(2, "turned").normal((4, dim))
        turned = codecs.turn(x)
        assert np.abs(codecs.turn(turned) - x).max() <= 2e-6
        assert np.abs((turned**2).sum(axis=1) / (x**2).sum(axis=1) - 1).max() <= 1e-6


def test_every_codec_of_the_spec_is_here() -> None:
    assert tuple(codecs.CODECS) == CODECS
