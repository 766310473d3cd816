"""How a key or value becomes bytes and numbers again: a class for each codec, in NumPy, bit for bit what kernels do.

A codec turns heads [T, D] (float32, finite) into each token's bytes [T, bytes] and back; ``cache.cells`` knows where in
a block these stand, ``spec.cache`` how many there are, and ``kernels.codes`` computes the same while a pass is written.
Everything is encoded when it is written, token by token, and never again: what a query sees doesn't depend on what came
later.

int8 and int4 first turn a head by a Hadamard matrix (as QuaRot does, Ashkboos et al., 2024), which spreads what is
large over all dims, so that one scale a head is enough. Attention turns the query too, and turns its result back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvist.kernels.layout import KEY_LEVELS, VALUE_LEVELS

Heads = npt.NDArray[np.float32]
"""[T, D]: one head of some tokens, or a number for each of them."""
Bounds = npt.NDArray[np.float64]
"""[T]."""
Raw = npt.NDArray[np.uint8]
"""[T, bytes]: the same as it is kept."""

_F32_STEP = 2.0**-24
"""Half the distance of neighbouring float32 numbers, to the larger."""
_TINY = 2.0**-126
"""What rounding among the smallest numbers may cost at most."""


class Codec(Protocol):
    """One way to keep keys and values."""

    @property
    def name(self) -> str: ...

    def encode_keys(self, keys: Heads) -> Raw: ...

    def decode_keys(self, raw: Raw) -> Heads: ...

    def encode_values(self, values: Heads) -> Raw: ...

    def decode_values(self, raw: Raw) -> Heads: ...

    def key_bound(self, keys: Heads) -> Bounds:
        """The most that a number of each head [T] can be off after encoding and decoding."""
        ...

    def value_bound(self, values: Heads) -> Bounds:
        """The same for values."""
        ...


def turn(heads: Heads) -> Heads:
    """Heads times a Hadamard matrix over as many dims as their largest power of two; twice gives them back."""
    dim = heads.shape[1]
    size, distance = dim & -dim, 1
    while distance < size:
        a, b = np.moveaxis(heads.reshape(len(heads), -1, 2, distance), 2, 0)
        heads = np.stack([a + b, a - b], axis=2).reshape(-1, dim)
        distance *= 2
    turned: Heads = heads * (np.float32(1) / np.sqrt(np.float32(size)))
    return turned


def largest(heads: Heads) -> Heads:
    """The largest absolute value of each head, [T]."""
    found: Heads = np.abs(heads).max(axis=1)
    return found


@dataclass(frozen=True)
class F32:
    """Numbers as they are computed."""

    name: str = "f32"

    def encode_keys(self, keys: Heads) -> Raw:
        return np.ascontiguousarray(keys).view(np.uint8)

    def decode_keys(self, raw: Raw) -> Heads:
        return np.ascontiguousarray(raw).view(np.float32)

    encode_values, decode_values = encode_keys, decode_keys

    def key_bound(self, keys: Heads) -> Bounds:
        return np.zeros(len(keys))

    value_bound = key_bound


@dataclass(frozen=True)
class Bf16:
    """The upper half of a float32, rounded half to even: 8 bits of precision, the same range."""

    name: str = "bf16"

    def encode_keys(self, keys: Heads) -> Raw:
        bits = np.ascontiguousarray(keys).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
        return rounded.astype(np.uint16).view(np.uint8)

    def decode_keys(self, raw: Raw) -> Heads:
        return (np.ascontiguousarray(raw).view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)

    encode_values, decode_values = encode_keys, decode_keys

    def key_bound(self, keys: Heads) -> Bounds:
        return largest(keys).astype(np.float64) * 2.0**-8 + _TINY

    value_bound = key_bound


def _scales(turned: Heads) -> Heads:
    """The scale of each turned head, [T, 1]: the smallest bfloat16 that is not below amax / 127."""
    bits = (largest(turned) / np.float32(127)).view(np.uint32) + np.uint32(0xFFFF)
    return (bits >> np.uint32(16) << np.uint32(16)).view(np.float32)[:, None]


def _divided(turned: Heads, scales: Heads) -> Heads:
    return np.divide(turned, np.where(scales > 0, scales, np.float32(1)), dtype=np.float32)


def _with_scales(codes: npt.NDArray[Any], scales: Heads) -> Raw:
    high_half = (scales.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return np.concatenate([np.ascontiguousarray(codes).view(np.uint8), high_half.view(np.uint8)], axis=1)


def scales_of(raw: Raw) -> Heads:
    """The scale of each head, [T, 1], that ends its bytes in int8 and int4."""
    return Bf16().decode_keys(raw[:, -2:])


def _turned_bound(heads: Heads, steps: float) -> Bounds:
    """What a number is off at most, where after turning it is off by at most ``steps`` scales.

    Turning back adds up the errors of as many dims as it takes in, over their square root; the scale is at most a
    bfloat16's step above amax / 127; turning there and back rounds at each of its sums.
    """
    dim = heads.shape[1]
    size = dim & -dim
    scale = largest(turn(heads)).astype(np.float64) / 127 * (1 + 2.0**-7) + _TINY
    rounding = (2 * size.bit_length() + 4) * _F32_STEP * np.sqrt(size) * largest(heads)
    return np.asarray(np.sqrt(size) * steps * scale + rounding)


@dataclass(frozen=True)
class Int8:
    """A byte for each number and a scale for the head: codes rint(x / scale), from -127 to 127."""

    name: str = "int8"

    def encode_keys(self, keys: Heads) -> Raw:
        return self._encode(keys, 128, np.uint8)

    def decode_keys(self, raw: Raw) -> Heads:
        return turn(self.key_numbers(raw) * scales_of(raw))

    def encode_values(self, values: Heads) -> Raw:
        return self._encode(values, 0, np.int8)

    def decode_values(self, raw: Raw) -> Heads:
        return turn(self.value_numbers(raw) * scales_of(raw))

    def key_numbers(self, raw: Raw) -> Heads:
        """Whole numbers that are a turned head once they are multiplied by its scale."""
        return raw[:, :-2].astype(np.float32) - np.float32(128)

    def value_numbers(self, raw: Raw) -> Heads:
        return raw[:, :-2].view(np.int8).astype(np.float32)

    def key_bound(self, keys: Heads) -> Bounds:
        return _turned_bound(keys, 0.5)

    value_bound = key_bound

    def _encode(self, heads: Heads, zero: int, dtype: Any) -> Raw:
        turned = turn(heads)
        scales = _scales(turned)
        return _with_scales((np.rint(_divided(turned, scales)).astype(np.int32) + zero).astype(dtype), scales)


@dataclass(frozen=True)
class Int4:
    """The nearest of 32 levels for each number of a key, of 16 for a value, and a scale for the head.

    The levels fit the normal distribution that a turned head comes near. A byte holds dims d and d + D/2.
    """

    name: str = "int4"

    def encode_keys(self, keys: Heads) -> Raw:
        codes, scales = self._codes(keys, KEY_LEVELS)
        low, high = np.split(codes, 2, axis=1)
        words = np.zeros((len(keys), 4 * -(-low.shape[1] // 16)), np.uint8)
        for number, fifths in enumerate((low >> 4, high >> 4)):
            for d in range(0, low.shape[1], 4):
                words[:, d // 16 * 4 : d // 16 * 4 + 4] |= fifths[:, d : d + 4] << np.uint8(d % 16 // 4 * 2 + number)
        return _with_scales(np.concatenate([low & 15 | high << 4, words], axis=1), scales)

    def decode_keys(self, raw: Raw) -> Heads:
        return turn(self.key_numbers(raw) * scales_of(raw))

    def encode_values(self, values: Heads) -> Raw:
        codes, scales = self._codes(values, VALUE_LEVELS)
        low, high = np.split(codes, 2, axis=1)
        return _with_scales(low | high << 4, scales)

    def decode_values(self, raw: Raw) -> Heads:
        return turn(self.value_numbers(raw) * scales_of(raw))

    def key_numbers(self, raw: Raw) -> Heads:
        """As ``Int8.key_numbers``."""
        half = next(half for half in range(8, raw.shape[1], 8) if half + 4 * -(-half // 16) + 2 == raw.shape[1])
        codes = np.concatenate([raw[:, :half] & 15, raw[:, :half] >> 4], axis=1)
        for d in range(0, half, 4):
            words = raw[:, half + d // 16 * 4 : half + d // 16 * 4 + 4]
            for number, first in enumerate((d, half + d)):
                codes[:, first : first + 4] |= (words >> np.uint8(d % 16 // 4 * 2 + number) & 1) << 4
        return np.take(np.array(KEY_LEVELS, np.float32), codes)

    def value_numbers(self, raw: Raw) -> Heads:
        codes = np.concatenate([raw[:, :-2] & 15, raw[:, :-2] >> 4], axis=1)
        return np.take(np.array(VALUE_LEVELS, np.float32), codes)

    def key_bound(self, keys: Heads) -> Bounds:
        return _turned_bound(keys, max(np.diff(KEY_LEVELS)) / 2)

    def value_bound(self, values: Heads) -> Bounds:
        return _turned_bound(values, max(np.diff(VALUE_LEVELS)) / 2)

    def _codes(self, heads: Heads, levels: tuple[int, ...]) -> tuple[npt.NDArray[np.uint8], Heads]:
        turned = turn(heads)
        scales = _scales(turned)
        bounds = (np.array(levels[1:]) + np.array(levels[:-1])).astype(np.float32) / 2
        return np.searchsorted(bounds, _divided(turned, scales), side="right").astype(np.uint8), scales


CODECS: Mapping[str, Codec] = {codec.name: codec for codec in (F32(), Bf16(), Int8(), Int4())}
"""All codecs by name, as ``spec.cache`` lists them."""
