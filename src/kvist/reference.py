"""The lesson: a GPT in NumPy, without a KV cache and with one. Read it from top to bottom.

A decoder turns T token ids into T rows of scores (logits); row t rates every token of the vocabulary as the one
that comes after token t. Tokens meet in one place only, attention: token t's *query* is compared with the *keys* of
tokens 0..t, and the *values* of those tokens are averaged, weighted by how well their keys matched. Nothing that
comes later changes an earlier token's key or value. So they can be kept, and that store is the KV cache:

``generate_uncached``  runs the whole sequence for every new token: n tokens cost 1 + 2 + ... + n runs of a token
``generate_cached``    runs each token once and attends to the stored keys and values of those before it

Both give the same tokens. The price of the second is memory: 2 x layers x KV heads x head_dim numbers a token.

The arithmetic is done in the type of the weights (float32, or float64 where this serves as an oracle). This module
imports nothing of the fast path; it knows no files, blocks or kernels. Letters in shape comments: T tokens of this
call, S tokens so far (this call's are the last T), L layers, H query heads, K KV heads, D head dim, E model width,
F MLP width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kvist.errors import RequestError, SpecError

Array = npt.NDArray[np.floating[Any]]
Weights = Mapping[str, Array]


@dataclass(frozen=True)
class GptConfig:
    """What the weights do not say by themselves.

    ``num_kv_heads`` equal to ``num_heads`` is multi-head attention (MHA), fewer is grouped-query attention (GQA: that
    many times fewer bytes in the cache), 1 is multi-query attention (MQA). ``windows`` holds for each layer the number
    of tokens that a query sees, itself included, None for all; left empty, every layer sees all. ``rope_factor`` and
    ``rope_ramp`` (low and high frequency factor, original context) stretch rotary positions, see ``rope_frequencies``.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    positions: Literal["rotary", "learned"] = "rotary"
    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = 1e-5
    mlp: Literal["gated", "plain"] = "gated"
    rope_theta: float = 10_000.0
    rope_factor: float = 1.0
    rope_ramp: tuple[float, float, int] | None = None
    windows: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        if min(self.num_layers, self.num_heads, self.num_kv_heads, self.head_dim) < 1:
            raise SpecError(f"layers, heads and head_dim must be at least 1, got {self}")
        if self.num_heads % self.num_kv_heads:
            raise SpecError(f"{self.num_heads} heads must be a multiple of num_kv_heads, got {self.num_kv_heads}")
        if self.positions == "rotary" and self.head_dim % 2:
            raise SpecError(f"rotary positions turn pairs of numbers: head_dim must be even, got {self.head_dim}")
        if self.windows and len(self.windows) != self.num_layers:
            raise SpecError(f"windows needs one entry for each of {self.num_layers} layers, got {len(self.windows)}")
        if any(window is not None and window < 1 for window in self.windows):
            raise SpecError(f"a window must hold at least 1 token, got {self.windows}")


# ---- The pieces ------------------------------------------------------------------------------------------------


def linear(x: Array, weights: Weights, name: str) -> Array:
    """Return x times a matrix stored as [out, in], plus its bias where ``weights`` has one.  # [T, in] -> [T, out]"""
    y = x @ weights[name].T
    return y + weights[name + ".bias"] if name + ".bias" in weights else y


def normalise(x: Array, weights: Weights, name: str, config: GptConfig) -> Array:
    """Bring each row to size 1, then scale it. LayerNorm is RMSNorm of the row less its mean, plus a bias."""
    if config.norm == "layer":
        x = x - np.mean(x, axis=-1, keepdims=True)
    x = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + config.norm_eps) * weights[name]
    return x + weights[name + ".bias"] if name + ".bias" in weights else x


def softmax(scores: Array) -> Array:
    """Turn scores into weights that add up to 1 along the last axis."""
    powers: Array = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    total: Array = np.sum(powers, axis=-1, keepdims=True)
    return powers / total


def silu(x: Array) -> Array:
    power: Array = np.exp(-x)
    return x / (1 + power)


def gelu(x: Array) -> Array:
    """The tanh form, as GPT-2 has it."""
    bend: Array = np.tanh(np.sqrt(2 / np.pi).astype(x.dtype) * (x + 0.044715 * x * x * x))
    return 0.5 * x * (1 + bend)


def split_heads(x: Array, num_heads: int) -> Array:
    """[T, heads x D] -> [heads, T, D]"""
    return x.reshape(len(x), num_heads, -1).swapaxes(0, 1)


def rope_frequencies(config: GptConfig) -> Array:
    """Return the angle in radians by which each pair of numbers turns per position, float64.  # [D/2]

    With ``rope_factor`` f all turn f times slower, so that f times more tokens fit into the angles seen in training.
    With ``rope_ramp`` (Llama 3) only slow pairs do: those that turn fewer than ``low`` times in the original context
    are slowed in full, those that turn more than ``high`` times stay as they are, between them it goes smoothly.
    """
    frequencies = config.rope_theta ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
    keep: Array | float = 0.0
    if config.rope_ramp is not None:
        low, high, original_context = config.rope_ramp
        num_turns = original_context * frequencies / (2 * np.pi)
        keep = np.clip((num_turns - low) / (high - low), 0, 1)
    return keep * frequencies + (1 - keep) * frequencies / config.rope_factor


def rotate(x: Array, first: int, frequencies: Array) -> Array:
    """Turn each pair (i, i + D/2) by its position times its frequency; the rows are positions first, first + 1, ...

    A query at m times a key at n then depends on m - n only, so keys are stored turned and never touched again.
    """
    angles = np.arange(first, first + x.shape[1])[:, None] * frequencies  # [T, D/2]
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def attend(q: Array, k: Array, v: Array, window: int | None) -> Array:
    """Average the values that each query may see.  # q [H, T, D], k and v [K, S, D] -> [T, H x D]"""
    num_heads, num_queries, dim = q.shape
    num_keys = k.shape[1]
    k, v = (np.repeat(x, num_heads // len(x), axis=0) for x in (k, v))  # H / K query heads share a KV head
    scores = q @ k.swapaxes(1, 2) / np.sqrt(dim).astype(q.dtype)  # [H, T, S]
    age = np.arange(num_keys - num_queries, num_keys)[:, None] - np.arange(num_keys)  # query's position less key's
    visible = (age >= 0) & (age < (window or num_keys))
    mixed = softmax(np.where(visible, scores, -np.inf)) @ v  # [H, T, D]
    return mixed.swapaxes(0, 1).reshape(num_queries, -1)


# ---- The cache and the model -----------------------------------------------------------------------------------


class KeyValueCache:
    """The keys and values of one sequence; ``num_tokens`` of at most ``capacity`` tokens are in it."""

    def __init__(self, config: GptConfig, capacity: int, dtype: npt.DTypeLike = np.float32) -> None:
        shape = (config.num_layers, config.num_kv_heads, capacity, config.head_dim)
        self.k = np.zeros(shape, dtype)
        self.v = np.zeros(shape, dtype)
        self.num_tokens = 0

    @property
    def capacity(self) -> int:
        return self.k.shape[2]

    def extend(self, layer: int, k: Array, v: Array) -> tuple[Array, Array]:
        """Store one layer's keys and values of the new tokens, return those of all tokens.  # [K, T, D] -> [K, S, D]"""
        end = self.num_tokens + k.shape[1]
        self.k[layer, :, self.num_tokens : end] = k
        self.v[layer, :, self.num_tokens : end] = v
        return self.k[layer, :, :end], self.v[layer, :, :end]


def forward(weights: Weights, config: GptConfig, token_ids: Sequence[int], cache: KeyValueCache | None = None) -> Array:
    """Return the logits of every token given; ``cache`` holds those before them and takes them in.  # [T, V]

    ``weights``: embed [V, E], positions [context, E] if learned, norm [E], output [V, E] (else embed serves: it is
    tied), and for each layer N under "layers.N.": attn_norm and mlp_norm [E], q [H x D, E], k and v [K x D, E],
    o [E, H x D], up [F, E], gate [F, E] of a gated MLP, down [E, F]; q_norm and k_norm [D] and any NAME.bias if any.
    Raises RequestError for no tokens, ids outside the vocabulary, and more tokens than the cache or table holds.
    """
    first = cache.num_tokens if cache is not None else 0  # position of the first token given
    check_tokens(weights, token_ids, first, cache)
    x = weights["embed"][np.asarray(token_ids)]  # [T, E]
    if config.positions == "learned":  # past the table there is nothing to add: an index that is out of range
        x = x + weights["positions"][first : first + len(token_ids)]
    for number in range(config.num_layers):
        x = x + attention_layer(x, weights, config, number, first, cache)
        x = x + mlp_layer(x, weights, config, f"layers.{number}.")
    if cache is not None:
        cache.num_tokens += len(token_ids)
    x = normalise(x, weights, "norm", config)
    return linear(x, weights, "output" if "output" in weights else "embed")


def attention_layer(
    x: Array, weights: Weights, config: GptConfig, number: int, first: int, cache: KeyValueCache | None
) -> Array:
    at = f"layers.{number}."
    x = normalise(x, weights, at + "attn_norm", config)
    q = split_heads(linear(x, weights, at + "q"), config.num_heads)  # [H, T, D]
    k = split_heads(linear(x, weights, at + "k"), config.num_kv_heads)  # [K, T, D]
    v = split_heads(linear(x, weights, at + "v"), config.num_kv_heads)  # [K, T, D]
    if at + "q_norm" in weights:
        q, k = normalise(q, weights, at + "q_norm", config), normalise(k, weights, at + "k_norm", config)
    if config.positions == "rotary":
        frequencies = rope_frequencies(config)
        q, k = rotate(q, first, frequencies), rotate(k, first, frequencies)
    if cache is not None:
        k, v = cache.extend(number, k, v)  # [K, S, D]
    return linear(attend(q, k, v, config.windows[number] if config.windows else None), weights, at + "o")


def mlp_layer(x: Array, weights: Weights, config: GptConfig, at: str) -> Array:
    x = normalise(x, weights, at + "mlp_norm", config)
    up = linear(x, weights, at + "up")
    hidden = silu(linear(x, weights, at + "gate")) * up if config.mlp == "gated" else gelu(up)  # [T, F]
    return linear(hidden, weights, at + "down")


def check_tokens(weights: Weights, token_ids: Sequence[int], first: int, cache: KeyValueCache | None) -> None:
    if len(token_ids) == 0:
        raise RequestError("a forward pass needs at least one token, got none")
    vocab_size, end = len(weights["embed"]), first + len(token_ids)
    if min(token_ids) < 0 or max(token_ids) >= vocab_size:
        raise RequestError(f"token ids must lie in 0..{vocab_size - 1}, got {min(token_ids)}..{max(token_ids)}")
    if cache is not None and end > cache.capacity:
        raise RequestError(f"the cache holds {cache.capacity} tokens, got {end}; make it larger")
    if "positions" in weights and end > len(weights["positions"]):
        raise RequestError(f"the model has {len(weights['positions'])} learned positions, got {end} tokens")


# ---- The two loops ---------------------------------------------------------------------------------------------


def generate_uncached(weights: Weights, config: GptConfig, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """Return ``num_tokens`` greedy tokens after ``prompt``, running the whole sequence for each of them."""
    token_ids = list(prompt)
    for _ in range(num_tokens):
        logits = forward(weights, config, token_ids)
        token_ids.append(int(np.argmax(logits[-1])))
    return token_ids[len(prompt) :]


def generate_cached(weights: Weights, config: GptConfig, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """Return ``num_tokens`` greedy tokens after ``prompt``, running the prompt (prefill), then each new token, once."""
    cache = KeyValueCache(config, len(prompt) + num_tokens, weights["embed"].dtype)
    generated: list[int] = []
    new_ids = list(prompt)
    for _ in range(num_tokens):
        logits = forward(weights, config, new_ids, cache)
        new_ids = [int(np.argmax(logits[-1]))]
        generated += new_ids
    return generated
