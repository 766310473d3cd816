"""Which kind each layer is, its window, its heads and their width, against transformers' config classes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from kvist.spec.config import model_spec_from_config
from kvist.spec.model import LayerSpec
from kvist.spec.model_types import MODEL_TYPES

KINDS = {
    "full_attention": {"full", "mla"},
    "indexed_attention": {"mla"},
    "sliding_attention": {"window", "full"},
    "chunked_attention": {"chunked"},
    "linear_attention": {"recurrent"},
    "conv": {"recurrent"},
    "hybrid": {"full"},
    "mlp": {"none"},
    "moe": {"none"},
}

# Beyond each class's defaults: what a published config of the kind might say.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("qwen2", {"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 20}),
    ("qwen2", {"use_sliding_window": False, "sliding_window": 512, "num_key_value_heads": None}),
    ("qwen3", {"use_sliding_window": True, "max_window_layers": 0}),
    ("qwen2_moe", {"use_sliding_window": True, "max_window_layers": 11}),
    ("gemma3_text", {"sliding_window_pattern": 4, "num_hidden_layers": 18}),
    ("gemma3_text", {"use_bidirectional_attention": True, "sliding_window": 512}),
    ("gemma2", {"num_hidden_layers": 9, "sliding_window": 100}),
    ("cohere2", {"sliding_window_pattern": 3}),
    ("exaone4", {"sliding_window_pattern": 2}),
    ("olmo3", {"num_hidden_layers": 10}),
    ("llama4_text", {"no_rope_layer_interval": 3}),
    ("llama4_text", {"attention_chunk_size": None}),
    ("smollm3", {"use_sliding_window": True, "sliding_window": 64, "no_rope_layer_interval": 2}),
    ("dots1", {"max_window_layers": 10}),
    ("qwen3_next", {"full_attention_interval": 3}),
    ("qwen3_5_text", {"full_attention_interval": 2}),
    ("jamba", {"attn_layer_period": 5, "attn_layer_offset": 2}),
    ("bamba", {"attn_layer_indices": [9, 18, 27]}),
    ("granitemoehybrid", {"layer_types": ["mamba", "attention"] * 16}),
    ("lfm2", {"full_attn_idxs": [2, 5, 8]}),
    ("minimax", {"num_hidden_layers": 7}),
    ("kimi_linear", {"linear_attn_config": {"full_attn_layers": [2, 4], "kda_layers": [1, 3]}, "num_hidden_layers": 4}),
    ("nemotron_h", {"hybrid_override_pattern": "M-M*-ME"}),
    ("recurrent_gemma", {"block_types": ["recurrent", "attention"]}),
    ("zamba2", {"layers_block_type": ["mamba", "hybrid"] * 27}),
    ("mimo_v2_flash", {"sliding_window_size": 64}),
    ("afmoe", {"global_attn_every_n_layers": 3}),
    ("llama", {"num_key_value_heads": 2, "head_dim": 96}),
    ("gpt_bigcode", {"multi_query": False}),
]
NEEDS: dict[str, dict[str, Any]] = {"nemotron_h": {"hybrid_override_pattern": "ME*-"}}


def _attention(layers: tuple[LayerSpec, ...]) -> list[LayerSpec]:
    return [layer for layer in layers if layer.kind in ("full", "window", "chunked")]


def _compare(model_type: str, keys: dict[str, Any], published: dict[str, Any]) -> None:
    config = CONFIG_MAPPING[model_type](**keys)
    layers = model_spec_from_config(published).layers
    names = getattr(config, "layer_types", None)
    if names:
        assert len(layers) == len(names)
        for layer, name in zip(layers, names, strict=True):
            assert layer.kind in KINDS[name], (layer, name)
    window = getattr(config, "sliding_window", None) or getattr(config, "window_size", None)
    for layer in layers:
        if layer.kind == "window":
            assert layer.window == window
        if layer.kind == "chunked":
            assert layer.window == config.attention_chunk_size
    if names and "sliding_attention" in names and window:
        assert any(layer.kind == "window" for layer in layers)
    if model_type not in ("gemma4_text", "mimo_v2_flash"):  # their heads differ by layer; tests/spec has them
        for layer in _attention(layers):
            assert layer.num_heads == config.num_attention_heads
            assert layer.k_dim == (getattr(config, "head_dim", None) or layer.k_dim)
            if model_type not in ("falcon", "whisper"):
                assert layer.num_kv_heads == (getattr(config, "num_key_value_heads", None) or layer.num_heads)


@pytest.mark.parametrize("model_type", sorted(set(MODEL_TYPES) & set(CONFIG_MAPPING)))
def test_class_defaults(model_type: str) -> None:
    keys = NEEDS.get(model_type, {})
    published = {"model_type": model_type, **keys}
    if model_type == "nemotron_h":
        published["num_hidden_layers"] = 4
    _compare(model_type, keys, {"text_config": published})


@pytest.mark.parametrize(("model_type", "keys"), VARIANTS, ids=lambda value: value if isinstance(value, str) else "")
def test_variants(model_type: str, keys: dict[str, Any]) -> None:
    written = json.loads(json.dumps(CONFIG_MAPPING[model_type](**keys).to_dict(), default=str))
    derived = {"layer_types", "layers_block_type", "sliding_window"} - set(keys)
    plain = {key: value for key, value in written.items() if key not in derived}
    if "sliding_window" in CONFIG_MAPPING[model_type]().to_dict() and "sliding_window" not in keys:
        plain.pop("sliding_window", None)
    _compare(model_type, keys, {"text_config": {**plain, **keys, "model_type": model_type}})
