"""What a checkpoint's config says about its size and its layers; enough to count every byte of a cache.

Knows no tensors, no files and nothing about how a layer computes (``model.families`` has the switches of the
forward pass).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from kvist.errors import SpecError
from kvist.spec.experts import Experts
from kvist.spec.parameters import Parameters
from kvist.spec.state import RecurrentState

LayerKind = Literal["full", "window", "chunked", "mla", "recurrent", "none"]


@dataclass(frozen=True)
class CrossAttention:
    """Keys and values over an encoder's output: written once a sequence, kept whole."""

    num_kv_heads: int
    k_dim: int
    v_dim: int


@dataclass(frozen=True)
class LayerSpec:
    """One layer as the cache sees it.

    ``k_dim`` and ``v_dim`` are the widths of one head's key and value. ``window`` is the number of tokens that
    a query sees, itself included (kinds ``window`` and ``chunked``). An ``mla`` layer keeps one latent of
    ``k_dim`` a token, from which keys and values are both made (``v_dim`` 0). ``index_dim`` is the width of the
    sparse-attention key kept beside it. A layer that ``shares_cache`` reads the keys and values of an earlier
    one and stores none. ``state`` may stand beside attention (hybrid layers), ``cross`` in an encoder-decoder.
    """

    kind: LayerKind
    num_heads: int
    num_kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None = None
    index_dim: int = 0
    shares_cache: bool = False
    state: RecurrentState | None = None
    cross: CrossAttention | None = None

    def __post_init__(self) -> None:
        if self.kind in ("full", "window", "chunked"):
            if min(self.num_heads, self.num_kv_heads, self.k_dim, self.v_dim) < 1:
                raise SpecError(f"a layer's heads and widths must be at least 1, got {self}")
            if self.num_heads % self.num_kv_heads:
                raise SpecError(
                    f"{self.num_heads} query heads can't share {self.num_kv_heads} KV heads evenly; "
                    "the first must be a multiple of the second"
                )
        if self.kind == "mla" and (self.num_kv_heads, self.v_dim) != (1, 0):
            raise SpecError(f"a latent layer keeps one latent a token and no values, got {self}")
        if (self.window is not None) != (self.kind in ("window", "chunked")):
            raise SpecError(
                f"a window belongs to window and chunked layers only, got kind {self.kind} with window {self.window}"
            )
        if self.window is not None and self.window < 1:
            raise SpecError(f"a window must hold at least 1 token, got {self.window}")
        if (self.kind == "recurrent") and self.state is None:
            raise SpecError("a recurrent layer needs a state, got none")

    @property
    def has_tokens(self) -> bool:
        """Whether the layer stores something for every token (of its window)."""
        return self.kind in ("full", "window", "chunked", "mla") and not self.shares_cache

    def on_rank(self, num_ranks: int) -> LayerSpec:
        """Return what one of ``num_ranks`` tensor-parallel ranks keeps of the layer.

        KV heads are divided and, past their number, replicated; latents and index keys are whole everywhere.
        """
        state = self.state.on_rank(num_ranks) if self.state else None
        cross = replace(self.cross, num_kv_heads=-(-self.cross.num_kv_heads // num_ranks)) if self.cross else None
        if self.kind not in ("full", "window", "chunked"):
            return replace(self, state=state, cross=cross)
        num_kv_heads = -(-self.num_kv_heads // num_ranks)
        num_heads = num_kv_heads * (self.num_heads // self.num_kv_heads)
        return replace(self, num_heads=num_heads, num_kv_heads=num_kv_heads, state=state, cross=cross)


@dataclass(frozen=True)
class ModelSpec:
    """A decoder's measures. ``context_length`` is the trained one, in tokens; ``width`` is E, ``mlp_width`` F.

    ``experts`` has each layer's, None for a layer without, and is empty where no layer has any (or the config doesn't
    settle it). ``encoder_tokens`` is the length that cross attention sees unless a plan says otherwise.
    ``parameters`` is None where the config doesn't settle their number, ``missing`` then says what would. ``notes``
    are the assumptions that were made, a sentence each.
    """

    architecture: str
    vocab_size: int
    width: int
    mlp_width: int
    context_length: int
    layers: tuple[LayerSpec, ...]
    experts: tuple[Experts | None, ...] = ()
    is_tied: bool = False
    name: str = ""
    encoder_tokens: int = 0
    parameters: Parameters | None = None
    missing: str = ""
    weight_type: str = "bf16"
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in ("width", "context_length"):
            if getattr(self, field) < 1:
                raise SpecError(f"{field} must be at least 1, got {getattr(self, field)}")
        if not self.layers:
            raise SpecError("a model needs at least one layer, got none")
        assert len(self.experts) in (0, len(self.layers)), (len(self.experts), len(self.layers))

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def experts_of(self, number: int) -> Experts | None:
        """Return the experts of layer ``number``, None where it has an MLP."""
        return self.experts[number] if self.experts else None

    def on_rank(self, num_ranks: int) -> ModelSpec:
        """Return the model whose cache is what one of ``num_ranks`` tensor-parallel ranks keeps."""
        return replace(self, layers=tuple(layer.on_rank(num_ranks) for layer in self.layers))
