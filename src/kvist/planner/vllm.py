"""How vLLM lays out and charges its cache (rules of 0.20 to 0.32; ``tokens_before_020`` is the older count).

One pool of equal blocks serves layers of several kinds. Groups hold the same number of layers, one block of a group
is a page of each of its layers, pages are made equal by growing the block of the thinner kind, and with recurrent
layers a page must hold a whole state. A request is charged for every group:

    full attention      ceil(L / block)
    window W            ceil(min(W - 1 + batched, L) / block) + 1
    recurrent           1
    cross attention     ceil(encoder tokens / block)

Chunked attention is charged as full: the engine's default doesn't let such layers free their blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvist.errors import SpecError
from kvist.planner.engine import check_keeps_all
from kvist.spec.cache import CacheSpec, Price
from kvist.spec.footprint import Footprint
from kvist.spec.model import ModelSpec

BLOCK_TOKENS = 16
DEFAULT_BATCHED_TOKENS = 8192
"""max_num_batched_tokens: what may be in flight beyond a window."""

_CODEC_BITS = {"f32": 32, "bf16": 16, "int8": 8}
_SAMPLER_SEQUENCES, _SAMPLER_BYTES, _OTHER_BYTES = 1024, 39, 140 << 20


def _head_bytes(codec: str, dim: int) -> int:
    """fp8 has one scale for all tokens, so none a token."""
    return dim * _CODEC_BITS[codec] // 8


def _index_bytes(_codec: str, dim: int) -> int:
    """Index keys are fp8 whatever the cache is, with a 4-byte scale for each 128."""
    return dim + 4 * -(-dim // 128)


@dataclass(frozen=True)
class Kind:
    """Layers that vLLM keeps alike. ``page_bytes`` is for one token, of a recurrent kind the whole state."""

    name: str
    num_layers: int
    token_bytes: int
    window: int | None = None
    state_bytes: int = 0


@dataclass(frozen=True)
class Group:
    """A kind in the pool: how many groups its layers make, and how many tokens one of its blocks holds."""

    kind: Kind
    num_groups: int
    block_tokens: int


@dataclass(frozen=True)
class Layout:
    """The pool: its groups and the bytes of one of its blocks."""

    groups: tuple[Group, ...]
    block_bytes: int

    @property
    def num_groups(self) -> int:
        return sum(group.num_groups for group in self.groups)

    def blocks_needed(self, num_tokens: int, batched_tokens: int, encoder_tokens: int) -> int:
        """Blocks that a request of ``num_tokens`` is charged."""
        total = 0
        for group in self.groups:
            tokens = encoder_tokens if group.kind.name == "cross" else num_tokens
            if group.kind.name == "recurrent":
                blocks = 1
            elif group.kind.window is None:
                blocks = -(-tokens // group.block_tokens)
            else:
                blocks = -(-min(group.kind.window - 1 + batched_tokens, tokens) // group.block_tokens) + 1
            total += group.num_groups * blocks
        return total

    def tokens_logged(self, num_blocks: int, max_tokens: int, batched_tokens: int, encoder_tokens: int) -> int:
        """The "GPU KV cache size: N tokens" of the log: concurrency at the longest request, times its length."""
        return int(num_blocks / self.blocks_needed(max_tokens, batched_tokens, encoder_tokens) * max_tokens)

    def tokens_before_020(self, num_blocks: int) -> int:
        """The same line in versions before 0.20: the pool split evenly over the groups."""
        return num_blocks // self.num_groups * min(group.block_tokens for group in self.groups)


def layout(footprint: Footprint) -> Layout:
    """Return how vLLM would lay out the cache of one rank."""
    kinds = _kinds(footprint)
    attention = [kind for kind in kinds if kind.name != "recurrent"]
    recurrent = [kind for kind in kinds if kind.name == "recurrent"]
    if not attention:
        state = recurrent[0]
        return Layout((Group(state, 1, 1),), state.num_layers * state.state_bytes)
    is_uniform = not recurrent and all(kind.name == "full" for kind in attention)
    if is_uniform:
        whole = Kind("full", sum(kind.num_layers for kind in kinds), 0)
        bytes_per_token = sum(kind.num_layers * kind.token_bytes for kind in kinds)
        return Layout((Group(whole, 1, BLOCK_TOKENS),), bytes_per_token * BLOCK_TOKENS)
    blocks, page_bytes = _pages(attention, recurrent)
    per_group = _layers_per_group([kind.num_layers for kind in kinds])
    groups = tuple(Group(kind, -(-kind.num_layers // per_group), blocks[kind]) for kind in kinds)
    return Layout(groups, per_group * page_bytes)


def _kinds(footprint: Footprint) -> list[Kind]:
    found: list[Kind] = []
    for group in footprint.groups:
        window = group.window if group.layer.kind == "window" else None
        name = "full" if window is None else "window"
        found.append(Kind(name, len(group.layers), group.layer_token_bytes, window))
    states = [layer.state.num_bytes(footprint.state_codec) for layer in footprint.model.layers if layer.state]
    if states:
        found.append(Kind("recurrent", len(states), 0, state_bytes=max(states)))
    crosses = [
        footprint.spec.cross_token_bytes(layer, footprint.price) for layer in footprint.model.layers if layer.cross
    ]
    if crosses:
        found.append(Kind("cross", len(crosses), max(crosses)))
    return _merged(found)


def _merged(kinds: Sequence[Kind]) -> list[Kind]:
    """Join kinds that differ only in the number of their layers."""
    counts: dict[Kind, int] = {}
    for kind in kinds:
        alike = Kind(kind.name, 1, kind.token_bytes, kind.window, kind.state_bytes)
        counts[alike] = counts.get(alike, 0) + kind.num_layers
    return [Kind(kind.name, number, kind.token_bytes, kind.window, kind.state_bytes) for kind, number in counts.items()]


def _pages(attention: Sequence[Kind], recurrent: Sequence[Kind]) -> tuple[dict[Kind, int], int]:
    """Return each kind's tokens a block, and the bytes of a page, equal for all."""
    block = BLOCK_TOKENS
    if recurrent:
        widest = max(kind.token_bytes for kind in attention)
        needed = -(-max(kind.state_bytes for kind in recurrent) // widest)
        block = max(block, -(-needed // BLOCK_TOKENS) * BLOCK_TOKENS)
    page_bytes = max(kind.token_bytes for kind in attention) * block
    blocks = {kind: block * (page_bytes // (kind.token_bytes * block)) for kind in attention}
    return blocks | dict.fromkeys(recurrent, block), page_bytes


def _layers_per_group(counts: Sequence[int]) -> int:
    """The smallest kind's number of layers, or the largest's if that is below 1.5 times as many."""
    return max(counts) if max(counts) < 1.5 * min(counts) else min(counts)


@dataclass(frozen=True)
class VllmEngine:
    """vLLM with its default settings, or another ``batched_tokens``, or a pool of ``pool_blocks`` as a log has it."""

    batched_tokens: int = DEFAULT_BATCHED_TOKENS
    pool_blocks: int | None = None
    name: str = "vllm"
    codecs: tuple[str, ...] = tuple(_CODEC_BITS)
    state_codecs: tuple[str, ...] = ("f32", "bf16")
    price: Price = Price(_head_bytes, _head_bytes, _index_bytes)  # noqa: RUF009 - frozen, and made of functions

    def check(self, spec: CacheSpec) -> None:
        """Raise SpecError for int4, for keys and values kept differently, and for a retention of our own."""
        check_keeps_all(self.name, spec)
        for codec in (spec.k_codec, spec.v_codec):
            if codec not in self.codecs:
                raise SpecError(f'vllm keeps no "{codec}" cache; known there: f32, bf16, int8 (its fp8)')
        if spec.k_codec != spec.v_codec:
            raise SpecError(f"vllm keeps keys and values alike, got {spec.k_codec} and {spec.v_codec}; give --kv alone")

    def allocated_bytes(self, footprint: Footprint, num_tokens: int) -> int:
        """What is charged; between steps a window's last block may be free again."""
        return self.charged_bytes(footprint, num_tokens)

    def charged_bytes(self, footprint: Footprint, num_tokens: int) -> int:
        """Blocks that admission counts, at the pool's block size."""
        pool = layout(footprint)
        return self._needed(pool, footprint, num_tokens) * pool.block_bytes

    def overhead_bytes(self, model: ModelSpec) -> int:
        """Activations and the rest.

        The sampler's warm-up dominates: 1,024 sequences of a vocabulary at 39 bytes each fit six measured starts of
        vLLM 0.11 on an H100 within 2 % (Llama-3.1-8B: 4.76 GiB), and 0.13 GiB are outside of torch.
        """
        return _SAMPLER_SEQUENCES * _SAMPLER_BYTES * model.vocab_size + _OTHER_BYTES

    def report(self, footprint: Footprint, num_tokens: int, kv_budget_bytes: int | None) -> dict[str, Any]:
        """The three numbers that are taken for one another, and the pool behind them."""
        pool = layout(footprint)
        needed = self._needed(pool, footprint, num_tokens)
        blocks = self.pool_blocks
        if blocks is None and kv_budget_bytes is not None:
            blocks = kv_budget_bytes // pool.block_bytes
        tokens = None
        if blocks is not None:
            tokens = pool.tokens_logged(blocks, num_tokens, self.batched_tokens, footprint.num_encoder_tokens)
        return {
            "name": self.name,
            "resident_bytes": footprint.sequence_bytes(num_tokens),
            "charged_bytes": needed * pool.block_bytes,
            "logged_tokens": tokens,
            "blocks": needed,
            "pool_blocks": blocks,
            "pool_bytes": None if blocks is None else blocks * pool.block_bytes,
            "concurrency": None if blocks is None else blocks / needed,
            "block_bytes": pool.block_bytes,
            "block_tokens": max(group.block_tokens for group in pool.groups),
            "batched_tokens": self.batched_tokens,
        }

    def _needed(self, pool: Layout, footprint: Footprint, num_tokens: int) -> int:
        return pool.blocks_needed(num_tokens, self.batched_tokens, footprint.num_encoder_tokens)
