"""How one of GGUF's architectures reads as a config: the form of the tables' rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvist.checkpoint.files import TensorInfo
from kvist.checkpoint.gguf_keys import Keys, Real, Whole

Tensors = Mapping[str, TensorInfo]


def nothing_more(_keys: Keys, _tensors: Tensors) -> dict[str, object]:
    """What an architecture adds that its keys say all of."""
    return {}


@dataclass(frozen=True)
class Architecture:
    """``keys``: a config key and where its value stands (behind ``ARCHITECTURE.``); ``fixed``: what is true of all such
    models; ``biases``: config keys that are true where a tensor of that name is in the file. ``is_rotary`` adds
    head width, rope settings, experts and, where ``has_window``, a window of every layer; ``is_latent`` those of latent
    attention. ``more`` reads what is said otherwise.
    """

    model_type: str
    keys: Mapping[str, Whole | Real]
    fixed: Mapping[str, object] = field(default_factory=dict)
    biases: Mapping[str, str] = field(default_factory=dict)
    is_rotary: bool = True
    is_latent: bool = False
    has_window: bool = True
    more: Callable[[Keys, Tensors], Mapping[str, object]] = nothing_more


LLAMA_KEYS: dict[str, Whole | Real] = {
    "hidden_size": Whole("embedding_length"),
    "intermediate_size": Whole("feed_forward_length"),
    "num_hidden_layers": Whole("block_count"),
    "num_attention_heads": Whole("attention.head_count"),
    "num_key_value_heads": Whole("attention.head_count_kv", same_as="attention.head_count"),
    "max_position_embeddings": Whole("context_length"),
    "rms_norm_eps": Real("attention.layer_norm_rms_epsilon"),
    "rope_theta": Real("rope.freq_base", default=10000.0),
}
