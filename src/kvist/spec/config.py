"""From a ``config.json`` (or its twin made from a GGUF header) to a ModelSpec.

Follows what the reference implementation, Hugging Face transformers, does with each key, the defaults that live
only in its config classes included. Knows no files.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvist.errors import SpecError
from kvist.spec.fields import Fields
from kvist.spec.model import LayerSpec, ModelSpec

_DEFAULTS: dict[str, dict[str, object]] = {
    "llama": {"tie_word_embeddings": False, "max_position_embeddings": 2048},
    "mistral": {
        "tie_word_embeddings": False,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    "qwen2": {
        "tie_word_embeddings": False,
        "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    "qwen3": {
        "tie_word_embeddings": False,
        "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    "gpt2": {"tie_word_embeddings": True, "n_positions": 1024},
}


def model_spec_from_config(config: Mapping[str, object]) -> ModelSpec:
    """Return the measures of the model that ``config`` describes.

    Raises:
        SpecError: a key is missing, of the wrong type, or contradicts another.
    """
    architecture = Fields(config, {}).text("model_type")
    if architecture not in _DEFAULTS:
        raise SpecError(f'unknown model_type "{architecture}" in the config; known: {", ".join(sorted(_DEFAULTS))}')
    fields = Fields(config, _DEFAULTS[architecture])
    width = fields.count("hidden_size", "n_embd")
    num_heads = fields.count("num_attention_heads", "n_head")
    num_layers = fields.count("num_hidden_layers", "n_layer")
    head_dim = fields.maybe_count("head_dim") if architecture != "gpt2" else None
    if head_dim is None and width % num_heads and architecture == "gpt2":
        raise SpecError(f"hidden_size {width} isn't a multiple of the {num_heads} heads")
    head_dim = head_dim or width // num_heads
    num_kv_heads = num_heads if architecture == "gpt2" else fields.maybe_count("num_key_value_heads") or num_heads
    windows = _windows(architecture, fields, num_layers)
    layers = tuple(
        LayerSpec("full" if window is None else "window", num_heads, num_kv_heads, head_dim, head_dim, window)
        for window in windows
    )
    return ModelSpec(
        architecture=architecture,
        vocab_size=fields.count("vocab_size"),
        width=width,
        mlp_width=fields.maybe_count("intermediate_size", "n_inner") or 4 * width,
        context_length=fields.count("max_position_embeddings", "n_positions"),
        layers=layers,
        is_tied=fields.flag("tie_word_embeddings"),
    )


def _windows(architecture: str, fields: Fields, num_layers: int) -> list[int | None]:
    """Return the window of each layer, None for full attention."""
    if architecture in ("llama", "gpt2"):
        return [None] * num_layers
    window = fields.maybe_count("sliding_window")
    if architecture == "mistral":
        return [window] * num_layers
    if not fields.flag("use_sliding_window"):
        window = None
    types = fields.texts("layer_types")
    if types is None:
        first = fields.count("max_window_layers", least=0)
        return [window if number >= first else None for number in range(num_layers)]
    if len(types) != num_layers:
        raise SpecError(f"layer_types in the config names {len(types)} layers, num_hidden_layers says {num_layers}")
    return [window if kind == "sliding_attention" else None for kind in types]
