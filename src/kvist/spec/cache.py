"""How a cache is kept, and what that costs: the one formula behind the plan, the reservation and the gauge.

Three sizes are told apart everywhere:

``logical_bytes``    tokens x bytes per token: what the keys and values themselves take
``allocated_bytes``  the same rounded up to whole blocks: what a sequence holds of the pool
``pool_bytes``       what was reserved from the system, whoever uses it

Knows nothing of arrays; ``cache.store`` allocates exactly what is computed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from kvist.errors import SpecError
from kvist.spec.model import LayerSpec, ModelSpec

BLOCK_TOKENS = 16
"""Tokens in a block: the SIMD width in 32-bit lanes. Fixed, because the kernels' layouts follow it."""

Codec = Literal["f32", "bf16"]
CODECS: tuple[str, ...] = get_args(Codec)
_BITS = {"f32": 32, "bf16": 16}
_SCALE_BYTES = {"f32": 0, "bf16": 0}


def head_bytes(codec: str, dim: int) -> int:
    """Bytes of one token's key (or value) of one KV head of width ``dim``, its scale included."""
    return (dim * _BITS[codec] + 7) // 8 + _SCALE_BYTES[codec]


def check_codec(codec: str, option: str) -> None:
    """Raise SpecError unless ``codec`` is known; ``option`` is what the user set it with."""
    if codec not in CODECS:
        raise SpecError(f'unknown codec "{codec}" for {option}; known: {", ".join(CODECS)}')


@dataclass(frozen=True)
class CacheSpec:
    """How keys and values are kept: ``CacheSpec(codec="bf16")``, or K and V apart with ``k`` and ``v``."""

    codec: str = "bf16"
    k: str | None = None
    v: str | None = None

    def __post_init__(self) -> None:
        check_codec(self.codec, "codec")
        check_codec(self.k_codec, "k")
        check_codec(self.v_codec, "v")

    @property
    def k_codec(self) -> str:
        return self.k or self.codec

    @property
    def v_codec(self) -> str:
        return self.v or self.codec

    def layer_token_bytes(self, layer: LayerSpec) -> int:
        """Bytes of one token in one attention layer."""
        return layer.num_kv_heads * (head_bytes(self.k_codec, layer.k_dim) + head_bytes(self.v_codec, layer.v_dim))


@dataclass(frozen=True)
class LayerGroup:
    """Layers that share a block table: same window, same heads, same widths. ``layers`` are their numbers."""

    layer: LayerSpec
    layers: tuple[int, ...]
    spec: CacheSpec

    @property
    def window(self) -> int | None:
        return self.layer.window

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in all layers of the group."""
        return len(self.layers) * self.spec.layer_token_bytes(self.layer)

    @property
    def block_bytes(self) -> int:
        return BLOCK_TOKENS * self.token_bytes

    def first_kept(self, num_tokens: int) -> int:
        """The first position that the query at position ``num_tokens`` or a later one can still see."""
        return 0 if self.window is None else max(0, num_tokens - self.window + 1)

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


def layer_groups(model: ModelSpec, spec: CacheSpec) -> tuple[LayerGroup, ...]:
    """Return the model's attention layers by kind, in order of first appearance."""
    groups: dict[LayerSpec, list[int]] = {}
    for number, layer in enumerate(model.layers):
        if layer.kind in ("full", "window"):
            groups.setdefault(layer, []).append(number)
    return tuple(LayerGroup(layer, tuple(numbers), spec) for layer, numbers in groups.items())


def bytes_per_token(model: ModelSpec, spec: CacheSpec) -> int:
    """Bytes that one more token adds while no window has closed."""
    return sum(group.token_bytes for group in layer_groups(model, spec))


def logical_bytes(model: ModelSpec, spec: CacheSpec, num_tokens: int) -> int:
    """Bytes of the keys and values that a sequence of ``num_tokens`` needs, unrounded."""
    return sum(group.token_bytes * group.num_logical_tokens(num_tokens) for group in layer_groups(model, spec))


def allocated_bytes(model: ModelSpec, spec: CacheSpec, num_tokens: int) -> int:
    """Bytes of the blocks that a sequence of ``num_tokens`` holds between two steps."""
    return sum(group.block_bytes * group.num_blocks(num_tokens) for group in layer_groups(model, spec))


def pool_bytes(model: ModelSpec, spec: CacheSpec, num_tokens: int, step_tokens: int) -> int:
    """Bytes to reserve for one sequence that grows to ``num_tokens`` in steps of at most ``step_tokens``."""
    return sum(group.block_bytes * group.peak_blocks(num_tokens, step_tokens) for group in layer_groups(model, spec))
