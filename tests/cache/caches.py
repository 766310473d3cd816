"""Models whose caches tests fill: layers of several kinds, no weights."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

from kvist.spec.model import LayerSpec, ModelSpec


def attention_layer(window: int | None, *, kv_heads: int = 1, share: int = 1, dim: int = 16) -> LayerSpec:
    kind = "full" if window is None else "window"
    return LayerSpec(kind, kv_heads * share, kv_heads, dim, dim, window)


def model_of(layers: Iterable[LayerSpec]) -> ModelSpec:
    return ModelSpec("llama", 100, 64, 128, 4096, tuple(layers))


layers = st.builds(
    attention_layer,
    st.none() | st.integers(1, 40) | st.sampled_from([16, 17, 32, 33, 100]),
    kv_heads=st.integers(1, 3),
    share=st.integers(1, 2),
    dim=st.sampled_from([16, 32, 80]),
)
models = st.lists(layers, min_size=1, max_size=4).map(model_of)
