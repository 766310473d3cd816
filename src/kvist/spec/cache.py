"""How a cache is kept, and what that costs: the one formula behind the plan, the reservation and the gauge.

Three sizes are told apart everywhere:

``logical_bytes``    tokens x bytes per token: what the keys and values still needed take
``allocated_bytes``  the same rounded up to whole blocks: what a sequence holds of the pool
``pool_bytes``       what was reserved from the system, whoever uses it

Knows nothing of arrays; ``cache.store`` allocates exactly what is computed here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvist.errors import SpecError
from kvist.spec.model import LayerSpec, ModelSpec
from kvist.spec.state import CONV_ELEMENT_BYTES

BLOCK_TOKENS = 16
"""Tokens in a block: the SIMD width in 32-bit lanes. Fixed, because the kernels' layouts follow it."""

CODECS: tuple[str, ...] = ("f32", "bf16")
"""Codecs that the engine keeps a cache in."""

PRICED_CODECS: tuple[str, ...] = ("f32", "bf16", "int8", "int4")
"""Codecs whose bytes are known here, for plans."""

_BITS = {"f32": 32, "bf16": 16, "int8": 8, "int4": 4}
_SCALE_BYTES = {"f32": 0, "bf16": 0, "int8": 2, "int4": 2}
_TAIL_CODEC = {"int4": "bf16"}


def head_bytes(codec: str, dim: int) -> int:
    """Bytes of one token's key (or value) of one KV head of width ``dim``, its scale included."""
    return (dim * _BITS[codec] + 7) // 8 + _SCALE_BYTES[codec] if dim else 0


HeadPrice = Callable[[str, int], int]
"""Bytes of one head's key or value, from codec and width."""


@dataclass(frozen=True)
class Price:
    """What a cache costs in some engine: ``head`` for a key or value, ``index`` for a sparse-attention key, and
    the bytes of a number in a convolution's columns."""

    head: HeadPrice = head_bytes
    index: HeadPrice = head_bytes
    conv_element_bytes: int = CONV_ELEMENT_BYTES

    def key_bytes(self, codec: str, layer: LayerSpec) -> int:
        """Bytes of one token's keys in one layer, the index key that all heads share included."""
        return layer.num_kv_heads * self.head(codec, layer.k_dim) + self.index(codec, layer.index_dim)


KVIST = Price()
"""What kvist's own blocks cost."""


def check_codec(codec: str, option: str, known: tuple[str, ...] = CODECS) -> None:
    """Raise SpecError unless ``codec`` is known; ``option`` is what the user set it with."""
    if codec not in known:
        raise SpecError(f'unknown codec "{codec}" for {option}; known: {", ".join(known)}')


@dataclass(frozen=True)
class CacheSpec:
    """How keys and values are kept: ``CacheSpec(codec="bf16")``, or K and V apart with ``k`` and ``v``."""

    codec: str = "bf16"
    k: str | None = None
    v: str | None = None

    def __post_init__(self) -> None:
        check_codec(self.codec, "codec", PRICED_CODECS)
        check_codec(self.k_codec, "k", PRICED_CODECS)
        check_codec(self.v_codec, "v", PRICED_CODECS)

    @property
    def k_codec(self) -> str:
        return self.k or self.codec

    @property
    def v_codec(self) -> str:
        return self.v or self.codec

    def check_runs(self) -> None:
        """Raise SpecError unless the engine keeps a cache in these codecs, not only prices it."""
        check_codec(self.k_codec, "K")
        check_codec(self.v_codec, "V")

    def layer_token_bytes(self, layer: LayerSpec, price: Price = KVIST) -> int:
        """Bytes of one token in one attention layer."""
        return price.key_bytes(self.k_codec, layer) + layer.num_kv_heads * price.head(self.v_codec, layer.v_dim)

    def layer_tail_bytes(self, layer: LayerSpec) -> int:
        """Bytes of the block, in a wider codec, that a sequence fills before it is sealed; 0 where none is."""
        k_tail, v_tail = _TAIL_CODEC.get(self.k_codec), _TAIL_CODEC.get(self.v_codec)
        keys = KVIST.key_bytes(k_tail, layer) if k_tail else 0
        values = layer.num_kv_heads * head_bytes(v_tail, layer.v_dim) if v_tail else 0
        return BLOCK_TOKENS * (keys + values)

    def cross_token_bytes(self, layer: LayerSpec, price: Price = KVIST) -> int:
        """Bytes of one encoder token in one layer."""
        if layer.cross is None:
            return 0
        pair = price.head(self.k_codec, layer.cross.k_dim) + price.head(self.v_codec, layer.cross.v_dim)
        return layer.cross.num_kv_heads * pair


@dataclass(frozen=True)
class LayerGroup:
    """Layers that share a block table: same window, same heads, same widths. ``layers`` are their numbers."""

    layer: LayerSpec
    layers: tuple[int, ...]
    spec: CacheSpec
    price: Price = KVIST

    @property
    def window(self) -> int | None:
        return self.layer.window

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in all layers of the group."""
        return len(self.layers) * self.layer_token_bytes

    @property
    def layer_token_bytes(self) -> int:
        """Bytes of one token in one layer of the group."""
        return self.spec.layer_token_bytes(self.layer, self.price)

    @property
    def block_bytes(self) -> int:
        return BLOCK_TOKENS * self.token_bytes

    @property
    def tail_bytes(self) -> int:
        """Bytes of a sequence's unsealed block in all layers of the group; 0 for codecs that need none."""
        return len(self.layers) * self.spec.layer_tail_bytes(self.layer)

    def first_kept(self, num_tokens: int) -> int:
        """The first position that the query at position ``num_tokens`` or a later one can still see."""
        if self.window is None:
            return 0
        if self.layer.kind == "chunked":
            return num_tokens // self.window * self.window
        return max(0, num_tokens - self.window + 1)

    def num_seen_tokens(self, num_tokens: int) -> int:
        """The most tokens that any query of a sequence of ``num_tokens`` saw, itself included."""
        return num_tokens if self.window is None else min(num_tokens, self.window)

    def num_logical_tokens(self, num_tokens: int) -> int:
        """Tokens that a sequence of ``num_tokens`` still needs."""
        return num_tokens - self.first_kept(num_tokens)

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks that a sequence of ``num_tokens`` holds between two steps."""
        return num_blocks(num_tokens) - min(self.first_kept(num_tokens) // BLOCK_TOKENS, num_blocks(num_tokens))

    def peak_blocks(self, num_tokens: int, step_tokens: int) -> int:
        """The most blocks that a sequence growing to ``num_tokens`` holds, in steps of at most ``step_tokens``.

        A step's first query still needs its window while the step's last token is already written.
        """
        whole = num_blocks(num_tokens)
        if self.window is None:
            return whole
        return min(whole, num_blocks(self.window - 1 + step_tokens) + 1)


def num_blocks(num_tokens: int) -> int:
    """Blocks that ``num_tokens`` tokens fill, the last one perhaps partly."""
    return -(-num_tokens // BLOCK_TOKENS)


def layer_groups(model: ModelSpec, spec: CacheSpec, price: Price = KVIST) -> tuple[LayerGroup, ...]:
    """Return the layers that store tokens by kind, in order of first appearance."""
    groups: dict[LayerSpec, list[int]] = {}
    for number, layer in enumerate(model.layers):
        if layer.has_tokens:
            groups.setdefault(layer, []).append(number)
    return tuple(LayerGroup(layer, tuple(numbers), spec, price) for layer, numbers in groups.items())


def bytes_per_token(model: ModelSpec, spec: CacheSpec) -> int:
    """Bytes that one more token adds while no window has closed."""
    return sum(group.token_bytes for group in layer_groups(model, spec))


def logical_bytes(model: ModelSpec, spec: CacheSpec, num_tokens: int) -> int:
    """Bytes of the keys and values that a sequence of ``num_tokens`` needs, unrounded."""
    return sum(group.token_bytes * group.num_logical_tokens(num_tokens) for group in layer_groups(model, spec))


def allocated_bytes(model: ModelSpec, spec: CacheSpec, num_tokens: int) -> int:
    """Bytes of the blocks that a sequence of ``num_tokens`` holds between two steps."""
    return sum(
        group.block_bytes * group.num_blocks(num_tokens) + group.tail_bytes for group in layer_groups(model, spec)
    )


def pool_bytes(model: ModelSpec, spec: CacheSpec, num_tokens: int, step_tokens: int) -> int:
    """Bytes to reserve for one sequence that grows to ``num_tokens`` in steps of at most ``step_tokens``."""
    return sum(
        group.block_bytes * group.peak_blocks(num_tokens, step_tokens) + group.tail_bytes
        for group in layer_groups(model, spec)
    )
