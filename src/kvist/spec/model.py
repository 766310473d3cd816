"""What a checkpoint's config says about its size and its layers; enough to count every byte of a cache.

Knows no tensors, no files and nothing about how a layer computes (``model.families`` has the switches of the
forward pass).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvist.errors import SpecError

LayerKind = Literal["full", "window", "chunked", "mla", "recurrent", "none"]


@dataclass(frozen=True)
class LayerSpec:
    """One layer as the cache sees it.

    ``k_dim`` and ``v_dim`` are the widths of one head's key and value. ``window`` is the number of tokens that
    a query sees, itself included (kinds ``window`` and ``chunked``).
    """

    kind: LayerKind
    num_heads: int
    num_kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None = None

    def __post_init__(self) -> None:
        if self.kind in ("full", "window", "chunked"):
            if min(self.num_heads, self.num_kv_heads, self.k_dim, self.v_dim) < 1:
                raise SpecError(f"a layer's heads and widths must be at least 1, got {self}")
            if self.num_heads % self.num_kv_heads:
                raise SpecError(f"{self.num_heads} query heads can't share {self.num_kv_heads} KV heads evenly; the first must be a multiple of the second")
        if (self.window is not None) != (self.kind in ("window", "chunked")):
            raise SpecError(f"a window belongs to window and chunked layers only, got kind {self.kind} with window {self.window}")
        if self.window is not None and self.window < 1:
            raise SpecError(f"a window must hold at least 1 token, got {self.window}")


@dataclass(frozen=True)
class ModelSpec:
    """A decoder's measures. ``context_length`` is the trained one, in tokens; ``width`` is E, ``mlp_width`` F."""

    architecture: str
    vocab_size: int
    width: int
    mlp_width: int
    context_length: int
    layers: tuple[LayerSpec, ...]
    is_tied: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        for field in ("vocab_size", "width", "mlp_width", "context_length"):
            if getattr(self, field) < 1:
                raise SpecError(f"{field} must be at least 1, got {getattr(self, field)}")
        if not self.layers:
            raise SpecError("a model needs at least one layer, got none")

    @property
    def num_layers(self) -> int:
        return len(self.layers)
