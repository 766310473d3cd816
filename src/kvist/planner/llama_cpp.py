"""How llama.cpp reserves its cache: cells for the whole context at once, windows and states apart.

Full layers have a cell for every token, padded to 256; a window layer has its window and one micro-batch more, padded
likewise; recurrent layers keep state and convolution columns in f32, for every sequence. Latent (MLA) layers keep no
values. Quantised caches are its blocks of 32: q8_0 is 34 bytes, q4_0 18.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvist.errors import SpecError
from kvist.planner.engine import check_keeps_all
from kvist.spec.cache import CacheSpec, LayerGroup, Price
from kvist.spec.footprint import Footprint
from kvist.spec.model import ModelSpec

CELL_PADDING = 256
MICRO_BATCH_TOKENS = 512
TYPES = {"f32": "f32", "bf16": "f16", "int8": "q8_0", "int4": "q4_0"}
"""Its names for the codecs, as -ctk and -ctv take them; f16 is its default 16-bit type."""

_PLAIN_BYTES = {"f32": 4, "bf16": 2}
_BLOCK_BYTES = {"int8": 34, "int4": 18}
_F32_BYTES = 4


def _head_bytes(codec: str, dim: int) -> int:
    """Bytes of a head's row; quantised rows are whole blocks of 32."""
    if codec in _PLAIN_BYTES:
        return dim * _PLAIN_BYTES[codec]
    if dim % 32:
        raise SpecError(f"llama.cpp's {TYPES[codec]} cache needs heads of a multiple of 32, this model has {dim}")
    return dim // 32 * _BLOCK_BYTES[codec]


def num_cells(group: LayerGroup, num_tokens: int) -> int:
    """Cells that a group of layers has for one sequence of ``num_tokens``."""
    tokens = num_tokens
    if group.window is not None:
        tokens = min(_padded(num_tokens), group.window + MICRO_BATCH_TOKENS)
    return _padded(tokens)


def _padded(num_tokens: int) -> int:
    return -(-num_tokens // CELL_PADDING) * CELL_PADDING


@dataclass(frozen=True)
class LlamaCppEngine:
    """llama.cpp with its default settings (a sequence's share of a unified cache)."""

    name: str = "llama.cpp"
    codecs: tuple[str, ...] = tuple(TYPES)
    state_codecs: tuple[str, ...] = ("f32",)
    price: Price = Price(_head_bytes, _head_bytes, _head_bytes, _F32_BYTES)  # noqa: RUF009 - frozen, and made of functions

    def check(self, spec: CacheSpec) -> None:
        """All codecs have a type there; raise SpecError for a retention of our own."""
        check_keeps_all(self.name, spec)

    def cache_bytes(self, footprint: Footprint, num_tokens: int) -> int:
        """Bytes of the cells of one sequence."""
        return sum(group.token_bytes * num_cells(group, num_tokens) for group in footprint.groups)

    def allocated_bytes(self, footprint: Footprint, num_tokens: int) -> int:
        """Cells, states, and what the encoder left."""
        return self.cache_bytes(footprint, num_tokens) + footprint.constant_bytes

    def charged_bytes(self, footprint: Footprint, num_tokens: int) -> int:
        """Everything is reserved at start."""
        return self.allocated_bytes(footprint, num_tokens)

    def overhead_bytes(self, model: ModelSpec) -> int:
        """The logits of a micro-batch in f32, which dominate its compute buffer, and as much again for the rest."""
        return 2 * MICRO_BATCH_TOKENS * model.vocab_size * _F32_BYTES

    def report(self, footprint: Footprint, num_tokens: int, _kv_budget_bytes: int | None) -> dict[str, Any]:
        """Its own two lines: the cache's size and the recurrent state's."""
        return {
            "name": self.name,
            "resident_bytes": footprint.sequence_bytes(num_tokens),
            "charged_bytes": self.charged_bytes(footprint, num_tokens),
            "cells": {_label(group): num_cells(group, num_tokens) for group in footprint.groups},
            "kv_bytes": self.cache_bytes(footprint, num_tokens),
            "recurrent_bytes": footprint.state_bytes,
        }


def _label(group: LayerGroup) -> str:
    return "full" if group.window is None else f"window {group.window}"
