"""Three models that many people run, as much of their configs as a plan needs: for examples without a network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvist.spec.config import model_spec_from_config
from kvist.spec.model import ModelSpec

KNOWN_DEVICES = ("RTX 4090", "L40S", "H100")

KNOWN_MODELS: dict[str, dict[str, Any]] = {
    "Llama-3.1-8B": {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
    },
    "Qwen2.5-7B": {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "intermediate_size": 18944,
        "max_position_embeddings": 131072,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
    },
    "Gemma-3-27B": {
        "model_type": "gemma3_text",
        "hidden_size": 5376,
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "vocab_size": 262208,
        "intermediate_size": 21504,
        "sliding_window": 1024,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    },
}


def known_model(name: str) -> ModelSpec:
    """Return one of ``KNOWN_MODELS``."""
    return replace(model_spec_from_config(KNOWN_MODELS[name]), name=name)
