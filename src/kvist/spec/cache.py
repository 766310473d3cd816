"""How a cache is kept, and what that costs: the one formula behind the plan, the reservation and the gauge.

Three sizes are told apart everywhere:

``logical_bytes``    tokens x bytes per token: what the keys and values still needed take
``allocated_bytes``  the same rounded up to whole blocks: what a sequence holds of the pool
``pool_bytes``       what was reserved from the system, whoever uses it

Knows nothing of arrays; ``cache.store`` allocates exactly what is computed here.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from kvist.errors import SpecError
from kvist.spec.model import LayerSpec, ModelSpec
from kvist.spec.retention import ALL, RetentionSpec
from kvist.spec.state import CONV_ELEMENT_BYTES

BLOCK_TOKENS = 16
"""Tokens in a block: the SIMD width in 32-bit lanes. Fixed, because the kernels' layouts follow it."""

CODECS: tuple[str, ...] = ("f32", "bf16", "int8", "int4")
"""Codecs that a cache is kept in (``cache.codec`` says how), by bytes."""

KEPT_CODEC = "bf16"
"""What layers are kept in that are kept out of int8 and int4."""

_BITS = {"f32": 32, "bf16": 16, "int8": 8, "int4": 4}
_SCALE_BYTES = {"f32": 0, "bf16": 0, "int8": 2, "int4": 2}
_NARROW = ("int8", "int4")


def head_value_bytes(codec: str, dim: int) -> int:
    """Bytes of one token's value of one KV head of width ``dim``, its scale included."""
    return (dim * _BITS[codec] + 7) // 8 + _SCALE_BYTES[codec] if dim else 0


def head_key_bytes(codec: str, dim: int) -> int:
    """The same of a key; one in int4 has a fifth bit for each dim, in whole words of 32."""
    return head_value_bytes(codec, dim) + (4 * -(-dim // 32) if codec == "int4" else 0)


HeadPrice = Callable[[str, int], int]
"""Bytes of one head's key or value, from codec and width."""


@dataclass(frozen=True)
class Price:
    """What a cache costs in some engine: a head's ``key`` and ``value``, ``index`` for a sparse-attention key, and
    the bytes of a number in a convolution's columns."""

    key: HeadPrice = head_key_bytes
    value: HeadPrice = head_value_bytes
    index: HeadPrice = head_key_bytes
    conv_element_bytes: int = CONV_ELEMENT_BYTES

    def key_bytes(self, codec: str, layer: LayerSpec) -> int:
        """Bytes of one token's keys in one layer, the index key that all heads share included."""
        return layer.num_kv_heads * self.key(codec, layer.k_dim) + self.index(codec, layer.index_dim)


KVIST = Price()
"""What kvist's own blocks cost."""


def _wide(codec: str) -> str:
    """The codec of a kept layer."""
    return KEPT_CODEC if codec in _NARROW else codec


def check_codec(codec: str, option: str) -> None:
    """Raise SpecError unless ``codec`` is known; ``option`` is what the user set it with."""
    if codec not in CODECS:
        raise SpecError(f'unknown codec "{codec}" for {option}; known: {", ".join(CODECS)}')


def _check_is_retention(retention: object) -> None:
    """Raise SpecError for a text, say."""
    if not isinstance(retention, RetentionSpec):
        raise SpecError(
            f"retention of a CacheSpec takes a RetentionSpec, got {retention!r:.60}; parse_retention makes one of a "
            "text, and LLM and its requests take the text itself"
        )


def _layer_numbers(listed: Iterable[int]) -> tuple[int, ...]:
    """``listed`` as Python's whole numbers; raises SpecError where it is something else."""
    try:
        return tuple(operator.index(number) for number in listed)
    except TypeError:
        raise SpecError(f"keep_layers takes layer numbers, such as (0, 1, -1), got {listed!r:.60}") from None


@dataclass(frozen=True)
class CacheSpec:
    """How keys and values are kept: ``CacheSpec(codec="bf16")``, or K and V apart with ``k`` and ``v``.

    ``keep_layers`` stay in bf16 where the others are in int8 or int4; -1 is the last layer. ``retention`` says which
    tokens' (``parse_retention("sinks:4+1020")``).

    Raises SpecError for a codec that isn't known, and for what is no layer's number or no retention.
    """

    codec: str = "bf16"
    k: str | None = None
    v: str | None = None
    retention: RetentionSpec = ALL
    keep_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_codec(self.codec, "codec")
        check_codec(self.k_codec, "k")
        check_codec(self.v_codec, "v")
        _check_is_retention(self.retention)
        object.__setattr__(self, "keep_layers", _layer_numbers(self.keep_layers))

    @property
    def k_codec(self) -> str:
        return self.k or self.codec

    @property
    def v_codec(self) -> str:
        return self.v or self.codec

    def of_layers(self, num_layers: int) -> tuple[CacheSpec, ...]:
        """Return how each layer of a model is kept; raises SpecError for a kept layer that it doesn't have."""
        for number in self.keep_layers:
            if not -num_layers <= number < num_layers:
                raise SpecError(
                    f"there is no layer {number} to keep in {KEPT_CODEC}: the model has layers 0 to {num_layers - 1} "
                    f"(or -{num_layers} to -1, from the end); change keep_layers"
                )
        kept = {number % num_layers for number in self.keep_layers}
        narrow = replace(self, k=self.k_codec, v=self.v_codec, keep_layers=())
        wide = replace(narrow, k=_wide(self.k_codec), v=_wide(self.v_codec))
        return tuple(wide if number in kept else narrow for number in range(num_layers))

    def layer_token_bytes(self, layer: LayerSpec, price: Price = KVIST) -> int:
        """Bytes of one token in one attention layer."""
        return price.key_bytes(self.k_codec, layer) + layer.num_kv_heads * price.value(self.v_codec, layer.v_dim)

    def cross_token_bytes(self, layer: LayerSpec, price: Price = KVIST) -> int:
        """Bytes of one encoder token in one layer."""
        if layer.cross is None:
            return 0
        pair = price.key(self.k_codec, layer.cross.k_dim) + price.value(self.v_codec, layer.cross.v_dim)
        return layer.cross.num_kv_heads * pair


@dataclass(frozen=True)
class LayerGroup:
    """Layers that share a block table: same window, heads, widths and codecs. ``layers`` are their numbers."""

    layer: LayerSpec
    layers: tuple[int, ...]
    spec: CacheSpec
    price: Price = KVIST

    @property
    def retention(self) -> RetentionSpec:
        return self.spec.retention

    def with_retention(self, retention: RetentionSpec) -> LayerGroup:
        """Return the same layers with another retention, which a request may ask for."""
        return replace(self, spec=replace(self.spec, retention=retention))

    @property
    def window(self) -> int | None:
        """The tokens that a query sees, itself included, sinks aside, once the retention has begun; None: all."""
        return self.window_at(self.retention.starts_at)

    @property
    def num_sinks(self) -> int:
        """The first tokens that later queries go on seeing; layers with a window of their own have none."""
        return self.retention.num_sinks if self.layer.window is None else 0

    @property
    def is_scored(self) -> bool:
        """Whether tokens are chosen by the attention they get; layers with a window of their own keep that."""
        return self.retention.is_scored and self.layer.window is None

    def window_at(self, position: int) -> int | None:
        """The window of the query at ``position``: the layer's own or the retention's, the smaller one."""
        found = [size for size in (self.layer.window, self.retention.window_at(position)) if size is not None]
        return min(found, default=None)

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

    def first_kept(self, num_tokens: int) -> int:
        """The first position, sinks aside, that the query at position ``num_tokens`` or a later one can still see.

        In a scored group it is a slot: 0, always.
        """
        window = self.window_at(num_tokens)
        if window is None:
            return 0
        first = max(0, num_tokens - window + 1)
        if self.layer.kind == "chunked" and self.layer.window is not None:
            first = max(first, num_tokens // self.layer.window * self.layer.window)
        return first

    def num_slots(self, num_tokens: int, prompt_tokens: int | None = None) -> int:
        """Slots of the block table that a sequence of ``num_tokens`` fills or has filled, between two steps.

        ``prompt_tokens`` of them are its prompt (None: all of them).
        """
        if not self.is_scored:
            return num_tokens
        return self.retention.num_slots(num_tokens, num_tokens if prompt_tokens is None else prompt_tokens)

    @property
    def most_seen_tokens(self) -> int | None:
        """The most tokens that any query sees, itself included, however long a sequence is; None: no bound."""
        if self.is_scored:
            return self.retention.most_slots
        if self.window is None:
            return None
        before = self.retention.starts_at  # queries up to there see everything that the layer lets them
        before = before if self.layer.window is None else min(before, self.layer.window)
        return max(before, self.window + self.num_sinks)

    def num_seen_tokens(self, num_tokens: int, prompt_tokens: int | None = None) -> int:
        """The most tokens that any query of a sequence of ``num_tokens`` saw, itself included."""
        if self.is_scored:
            return self.retention.peak_slots(num_tokens, num_tokens if prompt_tokens is None else prompt_tokens)
        return num_tokens if self.most_seen_tokens is None else min(num_tokens, self.most_seen_tokens)

    def num_read_tokens(self, num_tokens: int, prompt_tokens: int | None = None) -> int:
        """Tokens that the last query of a sequence of ``num_tokens`` reads, its own included."""
        if self.is_scored:
            return self.num_slots(num_tokens, prompt_tokens)
        window = self.window_at(num_tokens - 1)
        num_sinks = self.num_sinks if num_tokens > self.retention.starts_at else 0
        return num_tokens if window is None else min(num_tokens, window + num_sinks)

    def num_logical_tokens(self, num_tokens: int, prompt_tokens: int | None = None) -> int:
        """Tokens that a sequence of ``num_tokens`` still needs."""
        return self.num_slots(num_tokens, prompt_tokens) - max(0, self.first_kept(num_tokens) - self.num_sinks)

    def num_blocks(self, num_tokens: int, prompt_tokens: int | None = None) -> int:
        """Blocks that a sequence of ``num_tokens`` holds between two steps."""
        whole = num_blocks(self.num_slots(num_tokens, prompt_tokens))
        first, end = self.dropped_blocks(num_tokens)
        return whole - max(0, min(end, whole) - first)

    def dropped_blocks(self, num_tokens: int) -> tuple[int, int]:
        """The first of the blocks that a sequence of ``num_tokens`` has given back, and the one after the last."""
        first = num_blocks(self.num_sinks)
        return first, max(first, self.first_kept(num_tokens) // BLOCK_TOKENS)

    def peak_blocks(self, num_tokens: int, step_tokens: int) -> int:
        """The most blocks that a sequence growing to ``num_tokens`` holds, in steps of at most ``step_tokens``.

        A step's first query still needs its window while the step's last token is already written. Where a retention
        begins later, a step ends there, and until then a layer's own window holds.
        """
        if self.is_scored:
            return num_blocks(self.retention.peak_slots(num_tokens, num_tokens))
        whole = num_blocks(num_tokens)
        if self.window is None:
            return whole
        before = num_blocks(self.retention.starts_at)
        if self.layer.window is not None:
            before = min(before, num_blocks(self.layer.window - 1 + step_tokens) + 1)
        return min(whole, max(before, num_blocks(self.window - 1 + step_tokens) + 1 + num_blocks(self.num_sinks)))


def check_retention(groups: tuple[LayerGroup, ...], retention: RetentionSpec) -> None:
    """Raise SpecError where layers of a model have windows of their own, in which no token can be chosen."""
    windows = [group for group in groups if group.layer.window is not None]
    if retention.is_scored and windows:
        raise SpecError(
            f"{retention} needs layers that see every token, and layer {windows[0].layers[0]} has a window of "
            f"{windows[0].layer.window}; take window:N or sinks:S+N"
        )


def check_codecs(groups: tuple[LayerGroup, ...]) -> None:
    """Raise SpecError where latents would be kept in codes, which differ for keys and values: a latent is both.

    A plan may still say what they would take.
    """
    for group in groups:
        codec = group.spec.k_codec
        if group.layer.kind == "mla" and codec in _NARROW:
            raise SpecError(
                f"latents, which layer {group.layers[0]} has, can't be kept in {codec}: each number is part of a key "
                "and of a value; keep the cache in f32 or bf16"
            )


def num_blocks(num_tokens: int) -> int:
    """Blocks that ``num_tokens`` tokens fill, the last one perhaps partly."""
    return -(-num_tokens // BLOCK_TOKENS)


def layer_groups(model: ModelSpec, spec: CacheSpec, price: Price = KVIST) -> tuple[LayerGroup, ...]:
    """Return the layers that store tokens by kind and codec, in order of first appearance."""
    groups: dict[tuple[LayerSpec, CacheSpec], list[int]] = {}
    for number, kind in enumerate(zip(model.layers, spec.of_layers(len(model.layers)), strict=True)):
        if kind[0].has_tokens:
            groups.setdefault(kind, []).append(number)
    return tuple(LayerGroup(layer, tuple(numbers), kept, price) for (layer, kept), numbers in groups.items())


def bytes_per_token(model: ModelSpec, spec: CacheSpec) -> int:
    """Bytes that one more token adds while no window has closed."""
    return sum(group.token_bytes for group in layer_groups(model, spec))


def logical_bytes(model: ModelSpec, spec: CacheSpec, num_tokens: int, prompt_tokens: int | None = None) -> int:
    """Bytes of the keys and values that a sequence of ``num_tokens`` needs, unrounded.

    ``prompt_tokens`` of them are its prompt (None: all of them).
    """
    groups = layer_groups(model, spec)
    return sum(group.token_bytes * group.num_logical_tokens(num_tokens, prompt_tokens) for group in groups)


def allocated_bytes(model: ModelSpec, spec: CacheSpec, num_tokens: int, prompt_tokens: int | None = None) -> int:
    """Bytes of the blocks that a sequence of ``num_tokens`` holds between two steps."""
    groups = layer_groups(model, spec)
    return sum(group.block_bytes * group.num_blocks(num_tokens, prompt_tokens) for group in groups)


def pool_bytes(model: ModelSpec, spec: CacheSpec, num_tokens: int, step_tokens: int) -> int:
    """Bytes to reserve for one sequence that grows to ``num_tokens`` in steps of at most ``step_tokens``."""
    return sum(group.block_bytes * group.peak_blocks(num_tokens, step_tokens) for group in layer_groups(model, spec))


def users_bytes(model: ModelSpec, spec: CacheSpec, num_users: int, num_tokens: int, shared_tokens: int = 0) -> int:
    """Bytes of the blocks that ``num_users`` sequences of ``num_tokens`` hold together between two steps.

    They begin with the same ``shared_tokens``, whose whole blocks are counted once.
    """
    total = 0
    for group in layer_groups(model, spec):
        held = group.num_blocks(num_tokens)
        first = num_blocks(num_tokens) - held
        shared = max(0, min(shared_tokens, num_tokens) // BLOCK_TOKENS - first)
        total += group.block_bytes * (shared + num_users * (held - shared))
    return total


def pool_blocks(
    groups: tuple[LayerGroup, ...],
    num_tokens: int,
    step_tokens: int,
    *,
    num_sequences: int = 1,
    budget: int | None = None,
) -> tuple[int, ...]:
    """Blocks to reserve for each group: enough for ``num_sequences`` sequences that grow to ``num_tokens`` each.

    With a ``budget`` in bytes, which must hold those, as many sequences as fit it; what it leaves goes to the groups
    without a window (all, where each has one), as many blocks to each: there short sequences take most.
    """
    peaks = [group.peak_blocks(num_tokens, step_tokens) for group in groups]
    one = sum(group.block_bytes * peak for group, peak in zip(groups, peaks, strict=True))
    if budget is None or not one:
        return tuple(num_sequences * peak for peak in peaks)
    assert budget >= num_sequences * one, (budget, num_sequences, one)
    count = budget // one
    growing = [group for group in groups if group.window is None] or groups
    more = (budget - count * one) // sum(group.block_bytes for group in growing)
    return tuple(count * peak + (more if group in growing else 0) for group, peak in zip(groups, peaks, strict=True))


def swap_blocks(groups: tuple[LayerGroup, ...], num_tokens: int, step_tokens: int, budget: int) -> tuple[int, ...]:
    """Blocks of each group that a swap space of at most ``budget`` bytes has, in the proportions of the cache's.

    Where it doesn't hold one sequence of ``num_tokens``, as many as the longest one that it does.
    """

    def num_bytes(count: int) -> int:
        peaks = (group.block_bytes * group.peak_blocks(BLOCK_TOKENS * count, step_tokens) for group in groups)
        return sum(peaks)

    most = num_blocks(num_tokens)
    if num_bytes(most) <= budget:
        return pool_blocks(groups, num_tokens, step_tokens, budget=budget)
    fitting = bisect_right(range(most), budget, key=num_bytes) - 1
    return tuple(group.peak_blocks(BLOCK_TOKENS * fitting, step_tokens) for group in groups)
