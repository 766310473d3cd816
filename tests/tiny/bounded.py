"""The lesson with a retention: everything is kept, what a query may not see is masked, positions are the engine's.

A whole text at once, in the type of the weights. Sinks are seen by the query as if it stood at a capped position, which
is StreamingLLM's "position in the cache"; keys are rotated once, where they stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvist.reference import (
    GptConfig,
    linear,
    mlp_layer,
    normalise,
    rope_frequencies,
    softmax,
    split_heads,
)
from kvist.spec.retention import RetentionSpec
from tiny.lesson import Weights

Array = np.ndarray[Any, Any]


def rotate(x: Array, positions: Array, config: GptConfig) -> Array:
    """``reference.rotate`` for rows at any positions.  # [H, T, D]"""
    angles = positions[:, None] * rope_frequencies(config)
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def forward(weights: Weights, config: GptConfig, token_ids: Sequence[int], retention: RetentionSpec) -> Array:
    """Return the logits of every token.  # [T, V]"""
    x = weights["embed"][np.asarray(token_ids)]
    if config.positions == "learned":
        x = x + weights["positions"][: len(token_ids)]
    for number in range(config.num_layers):
        x = x + _attention(x, weights, config, number, retention)
        x = x + mlp_layer(x, weights, config, f"layers.{number}.")
    return linear(normalise(x, weights, "norm", config), weights, "output" if "output" in weights else "embed")


def _attention(x: Array, weights: Weights, config: GptConfig, number: int, retention: RetentionSpec) -> Array:
    at, own = f"layers.{number}.", config.windows[number] if config.windows else None
    x = normalise(x, weights, at + "attn_norm", config)
    q = split_heads(linear(x, weights, at + "q"), config.num_heads)
    k, v = (split_heads(linear(x, weights, at + name), config.num_kv_heads) for name in "kv")
    if at + "q_norm" in weights:
        q, k = normalise(q, weights, at + "q_norm", config), normalise(k, weights, at + "k_norm", config)
    positions = np.arange(len(x))
    starts = positions >= retention.starts_at
    sinks = np.where(starts & (own is None), retention.num_sinks, 0)
    near, far = q, q
    if config.positions == "rotary":
        capped = np.where(sinks > 0, np.minimum(positions, retention.num_sinks + retention.num_kept - 1), positions)
        k, near, far = rotate(k, positions, config), rotate(q, positions, config), rotate(q, capped, config)
    k, v = (np.repeat(part, config.num_heads // config.num_kv_heads, axis=0) for part in (k, v))
    is_sink = positions[None] < sinks[:, None]  # [T, S]
    scores = np.where(is_sink, far @ k.swapaxes(1, 2), near @ k.swapaxes(1, 2)) / np.sqrt(config.head_dim).astype(
        q.dtype
    )
    window = np.full(len(x), own or len(x))
    if retention.is_bounded:
        window = np.where(starts, np.minimum(window, retention.num_kept), window)
    age = positions[:, None] - positions
    visible = (age >= 0) & ((age < window[:, None]) | is_sink)
    mixed = softmax(np.where(visible, scores, -np.inf)) @ v
    return linear(mixed.swapaxes(0, 1).reshape(len(x), -1), weights, at + "o")
