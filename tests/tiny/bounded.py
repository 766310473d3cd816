"""The lesson with a retention: everything is kept, what a query may not see is masked, positions are the engine's.

A whole text at once, in the type of the weights. Sinks are seen by the query as if it stood at a capped position, which
is StreamingLLM's "position in the cache"; keys are rotated once, where they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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


@dataclass(frozen=True)
class Seen:
    """What each query (row) sees of each key (column): ``visible``; ``sinks`` of these as if it stood at ``cap``."""

    visible: Array
    sinks: Array
    cap: int


def seen_by(retention: RetentionSpec, window: int | None, length: int) -> Seen:
    """What queries of a layer with a window of its own (None: none) see under all, a window, or sinks and a window."""
    positions = np.arange(length)
    is_on = (positions >= retention.starts_at)[:, None] & retention.is_bounded
    age = positions[:, None] - positions
    causal = age >= 0
    sinks = causal & is_on & (positions < (retention.num_sinks if window is None else 0))
    visible = causal & (sinks | ~is_on | (age < retention.num_kept)) & (age < (window or length))
    return Seen(visible, sinks, retention.num_sinks + retention.num_kept - 1)


def forward(weights: Weights, config: GptConfig, token_ids: Sequence[int], retention: RetentionSpec) -> Array:
    """Return the logits of every token under all, a window, or sinks and a window.  # [T, V]"""
    return forward_seeing(weights, config, token_ids, partial(seen_by, retention))


def forward_seeing(
    weights: Weights, config: GptConfig, token_ids: Sequence[int], seen: Callable[[int | None, int], Seen]
) -> Array:
    """Return the logits of every token [T, V]; ``seen`` is asked for each layer's window and the text's length."""
    x = weights["embed"][np.asarray(token_ids)]
    if config.positions == "learned":
        x = x + weights["positions"][: len(token_ids)]
    for number in range(config.num_layers):
        window = config.windows[number] if config.windows else None
        x = x + _attention(x, weights, config, f"layers.{number}.", seen(window, len(x)))
        x = x + mlp_layer(x, weights, config, f"layers.{number}.")
    return linear(normalise(x, weights, "norm", config), weights, "output" if "output" in weights else "embed")


def _attention(x: Array, weights: Weights, config: GptConfig, at: str, seen: Seen) -> Array:
    x = normalise(x, weights, at + "attn_norm", config)
    q = split_heads(linear(x, weights, at + "q"), config.num_heads)
    k, v = (split_heads(linear(x, weights, at + name), config.num_kv_heads) for name in "kv")
    if at + "q_norm" in weights:
        q, k = normalise(q, weights, at + "q_norm", config), normalise(k, weights, at + "k_norm", config)
    positions, far = np.arange(len(x)), q
    if config.positions == "rotary":
        far = rotate(q, np.minimum(positions, seen.cap), config)
        q, k = rotate(q, positions, config), rotate(k, positions, config)
    k, v = (np.repeat(part, config.num_heads // config.num_kv_heads, axis=0) for part in (k, v))
    scores = np.where(seen.sinks, far @ k.swapaxes(1, 2), q @ k.swapaxes(1, 2)) / np.sqrt(config.head_dim).astype(
        q.dtype
    )
    mixed = softmax(np.where(seen.visible, scores, -np.inf)) @ v
    return linear(mixed.swapaxes(0, 1).reshape(len(x), -1), weights, at + "o")
