"""Fused attention once more in NumPy, which rounds and quantises query and softmax weights as the kernels do.

Its scores and weights are the kernels' to the bit, since one that is rounded the other way is an error of a thousandth;
what is added up after that is added in float64.
"""

from __future__ import annotations

import types
from typing import Any

import numpy as np

from kvist.cache import codec as codecs
from kvist.kernels import elementwise, simd_numpy, span_codes
from kvist.kernels.layout import SPAN_TOKENS
from proof.heads import Heads

Array = np.ndarray[Any, Any]


def plain(kernel: Any) -> Any:
    """A piece of a kernel that works on vectors as plain NumPy, whatever kernels are compiled for."""
    function = getattr(kernel, "py_func", kernel)
    return types.FunctionType(function.__code__, {**function.__globals__, **vars(simd_numpy)})


exp, exp_below = plain(elementwise.exp), plain(span_codes.exp_below)


def is_float(codec: str) -> bool:
    return codec in ("f32", "bf16")


def exp_of(x: Array, v_codec: str) -> Array:
    """exp of a line of float32 numbers, as it is for values of a codec."""
    lines = np.resize(x, (-(-x.size // 16), 16)).astype(np.float32)
    compute = exp if is_float(v_codec) else exp_below
    return np.concatenate([compute(line[None])[0] for line in lines])[: x.size]


def capped_of(x: Array, cap: float) -> Array:
    """cap * tanh(x / cap) of a line of float32 numbers, by the kernels' operations."""
    one, two, limit = np.float32(1), np.float32(2), np.float32(cap)
    return limit * (one - two / (exp_of(two * (x / limit), "f32") + one))


def float_scores(q: Array, keys: Array) -> Array:
    """[T]: a query [D] times keys [T, D], even and odd dims summed apart with one rounding each."""
    sums = [np.zeros((1, len(keys)), np.float32) for _ in range(2)]
    for d in range(keys.shape[1]):
        sums[d % 2] = simd_numpy.fma(np.full_like(sums[0], q[d]), keys[None, :, d], sums[d % 2])
    return (sums[0] + sums[1])[0]


def bf16(x: Array) -> Array:
    """float32 numbers rounded to bf16."""
    lines = np.atleast_2d(x.astype(np.float32))
    return np.asarray(simd_numpy.bf16_to_f32(simd_numpy.f32_to_bf16(lines)).reshape(x.shape))


def bf16_scores(q: Array, keys: Array) -> Array:
    """[T]: a query [D] as bf16 times keys [T, D], two dims after two, the second one first, with one rounding each."""
    q, total = bf16(q), np.zeros((1, len(keys)), np.float32)
    for pair in range(0, keys.shape[1], 2):
        for d in (pair + 1, pair):
            total = simd_numpy.fma(np.full_like(total, q[d]), keys[None, :, d], total)
    return np.asarray(total[0])


def integer_scores(q: Array, numbers: Array, scales: Array) -> Array:
    """[T]: a query as bytes times keys as whole numbers, then the scales."""
    turned = codecs.turn(q[None])[0]
    largest = np.abs(turned).max()
    q_numbers = np.rint(turned * (np.float32(127) / largest))
    dots = (numbers.astype(np.int64) @ q_numbers.astype(np.int64)).astype(np.float32)
    return dots * (scales * (largest / np.float32(127)))


class Head:
    """One KV head of a sequence as it is stored."""

    def __init__(self, heads: Heads, k: Array, v: Array) -> None:
        self.heads = heads
        self.k, self.v = codecs.CODECS[heads.k_codec], codecs.CODECS[heads.v_codec]
        self.raw_k, self.raw_v = self.k.encode_keys(k), self.v.encode_values(v)
        self.keys, self.values = self.k.decode_keys(self.raw_k), self.v.decode_values(self.raw_v)

    def scores(self, q: Array) -> Array:
        q = q * np.float32(1 / np.sqrt(self.heads.dim))
        if is_float(self.heads.k_codec):
            scores = (bf16_scores if self.heads.k_codec == "bf16" else float_scores)(q, self.keys)
        else:
            scores = integer_scores(q, self.k.key_numbers(self.raw_k), codecs.scales_of(self.raw_k)[:, 0])
        return capped_of(scores, self.heads.cap) if self.heads.cap else scores

    def weighted(self, p: Array, first: int) -> Array:
        """[D]: weights p of the tokens from ``first`` on times their values."""
        tokens = slice(first, first + len(p))
        if self.heads.v_codec == "bf16":
            p = bf16(p)
        if is_float(self.heads.v_codec):
            return p.astype(np.float64) @ self.values[tokens].astype(np.float64)
        weights = p * codecs.scales_of(self.raw_v)[tokens, 0]
        top = weights.max()
        inverse = np.float32(255) / top if top > 1e-30 else np.float32(0)
        numbers = np.rint(weights.astype(np.float64) * np.float64(inverse))
        dots = numbers.astype(np.int64) @ self.v.value_numbers(self.raw_v)[tokens].astype(np.int64)
        return dots.astype(np.float32) * (top / np.float32(255))

    def attend(self, q: Array, position: int) -> Array:
        """[D]: what the query at a position gets."""
        low = max(0, position - (self.heads.window or position + 1) + 1)
        scores, parts = self.scores(q), []
        for span in range(low // SPAN_TOKENS, position // SPAN_TOKENS + 1):
            first, end = max(low, span * SPAN_TOKENS), min(position + 1, (span + 1) * SPAN_TOKENS)
            seen = scores[first:end]
            p = exp_of(seen - seen.max(), self.heads.v_codec)
            parts.append((float(seen.max()), p.astype(np.float64).sum(), self.weighted(p, first)))
        top = max(largest for largest, _, _ in parts)
        total = sum(np.exp(largest - top) * size for largest, size, _ in parts)
        out = sum(np.exp(largest - top) * values for largest, _, values in parts) / total
        return out if is_float(self.heads.v_codec) else codecs.turn(out.astype(np.float32)[None])[0]


def attended(heads: Heads, q: Array, k: Array, v: Array, rows: list[int]) -> Array:
    """[len(rows), H, D]: what the queries of some rows of a sequence get."""
    stored = [Head(heads, k[:, head], v[:, head]) for head in range(heads.kv_heads)]
    return np.stack(
        [
            np.stack([stored[head // heads.share].attend(q[row, head], row) for head in range(heads.num_heads)])
            for row in rows
        ]
    )
