"""How attention divides a layer's heads: KV heads, and how many query heads each is shared by."""

from __future__ import annotations

from kvist.spec.model import LayerSpec

LATENT_SHARE = 16
"""Most query heads that read a latent together; all heads of a layer share it, and threads divide them."""


def num_shared(layer: LayerSpec) -> int:
    """Query heads that attention takes together."""
    if layer.kind == "mla":
        return max(n for n in range(1, LATENT_SHARE + 1) if layer.num_heads % n == 0)
    return layer.num_heads // layer.num_kv_heads


def num_key_heads(layer: LayerSpec) -> int:
    """KV heads as attention counts them: those of a latent layer all read the same latent."""
    return layer.num_heads // num_shared(layer)


def value_width(layer: LayerSpec, rank: int) -> int:
    """Numbers that a query head attends to: of a latent layer the latent, which is ``rank`` wide."""
    return rank if layer.kind == "mla" else layer.k_dim
