"""Parameters and layers from configs, against transformers' own models built without memory (the meta device)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING

from kvist.spec.config import model_spec_from_config
from kvist.spec.model_types import MODEL_TYPES, class_defaults
from kvist.spec.weight_rules import WEIGHT_RULES

MODEL_CLASSES = {"whisper": "WhisperForConditionalGeneration"}
SEQ2SEQ = {"bart", "m2m_100", "marian", "mbart", "mt5", "pegasus", "t5", "umt5"}

# Each differs from its class's defaults in what changes the number of parameters.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4, "head_dim": 96}),
    ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    ("qwen2", {"num_key_value_heads": 2, "hidden_size": 896, "num_attention_heads": 14, "tie_word_embeddings": True}),
    ("qwen3", {"attention_bias": True, "num_key_value_heads": 8}),
    ("qwen3_moe", {"mlp_only_layers": [0, 3], "decoder_sparse_step": 2, "head_dim": 128}),
    ("qwen2_moe", {"qkv_bias": False, "mlp_only_layers": [1], "shared_expert_intermediate_size": 100}),
    ("qwen3_next", {"mlp_only_layers": [0], "linear_num_value_heads": 16, "full_attention_interval": 3}),
    ("gemma3_text", {"num_hidden_layers": 7, "attention_bias": True}),
    ("gemma3n_text", {"num_kv_shared_layers": 5}),
    (
        "gemma4_text",
        {
            "enable_moe_block": True,
            "num_experts": 8,
            "top_k_experts": 2,
            "moe_intermediate_size": 32,
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 2,
        },
    ),
    ("gemma4_text", {"num_kv_shared_layers": 6, "use_double_wide_mlp": True, "num_hidden_layers": 12}),
    ("gpt2", {"n_inner": 100, "tie_word_embeddings": False}),
    ("gpt_bigcode", {"multi_query": False}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 8, "num_attention_heads": 64, "hidden_size": 4096}),
    ("falcon", {"parallel_attn": False, "multi_query": False, "bias": True, "tie_word_embeddings": False}),
    ("opt", {"word_embed_proj_dim": 512, "do_layer_norm_before": False}),
    ("stablelm", {"use_qkv_bias": True, "qk_layernorm": True, "use_parallel_residual": True}),
    ("cohere", {"use_qk_norm": True, "num_key_value_heads": 8}),
    ("deepseek_v2", {"q_lora_rank": None, "first_k_dense_replace": 1, "num_experts_per_tok": 6}),
    ("deepseek_v3", {"attention_bias": True, "num_hidden_layers": 5, "n_shared_experts": 2}),
    ("dots1", {"n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 2, "first_k_dense_replace": 1}),
    ("glm4_moe", {"use_qk_norm": True, "attention_bias": True, "head_dim": 128}),
    ("granitemoehybrid", {"layer_types": ["mamba", "attention"] * 16, "num_local_experts": 0}),
    ("granitemoeshared", {"shared_intermediate_size": 128}),
    ("jamba", {"num_hidden_layers": 16, "attn_layer_period": 4, "attn_layer_offset": 1, "mamba_proj_bias": True}),
    ("bamba", {"attn_layer_indices": [9, 18, 27], "attention_bias": True}),
    ("falcon_h1", {"mamba_rms_norm": True, "mamba_n_groups": 2}),
    ("mamba", {"use_bias": True, "time_step_rank": 32, "use_conv_bias": False}),
    ("mamba2", {"n_groups": 1, "num_heads": 80, "hidden_size": 2560}),
    ("lfm2", {"full_attn_idxs": [2, 5], "block_auto_adjust_ff_dim": False, "conv_bias": True}),
    ("lfm2_moe", {"layer_types": ["conv", "full_attention"] * 16}),
    ("llama4_text", {"interleave_moe_layer_step": 2, "num_local_experts": 4}),
    ("nemotron_h", {"hybrid_override_pattern": "M-M*-ME", "use_bias": True}),
    ("olmo_hybrid", {"linear_num_key_heads": 8, "linear_num_value_heads": 16, "linear_key_head_dim": 64}),
    ("phimoe", {"attention_bias": True, "lm_head_bias": True}),
    ("t5", {"feed_forward_proj": "gated-gelu", "num_decoder_layers": 3}),
    ("mt5", {"num_decoder_layers": 3}),
    ("whisper", {"encoder_layers": 2, "decoder_layers": 3, "num_mel_bins": 128, "decoder_ffn_dim": 512}),
    ("bart", {"encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 512}),
]

# Classes whose defaults don't describe a model that their own code can build.
NEEDS: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 2},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 8, "moe_topk": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
}


# Keys that a class computes from others when it is made, so that its written value isn't its default.
COMPUTED: dict[str, set[str]] = {
    "bamba": {"mamba_d_head"},
    "ernie4_5_moe": {"moe_layer_end_index"},
    "falcon_h1": {"mamba_d_head"},
    "falcon_mamba": {"time_step_rank"},
    "gemma3n_text": {"intermediate_size"},
    "granitemoehybrid": {"mamba_d_head"},
    "jamba": {"mamba_dt_rank"},
    "mamba": {"time_step_rank"},
    "mamba2": {"time_step_rank"},
    "qwen2_moe": {"sliding_window"},
}


def _config(model_type: str, keys: dict[str, Any]) -> Any:
    return CONFIG_MAPPING[model_type](**{**NEEDS.get(model_type, {}), **keys})


def _parameters(model_type: str, config: Any) -> int:
    name = MODEL_CLASSES.get(model_type)
    with torch.device("meta"):
        if name is not None:
            model = getattr(transformers, name)(config)
        else:
            auto = transformers.AutoModelForSeq2SeqLM if model_type in SEQ2SEQ else transformers.AutoModelForCausalLM
            model = auto.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


def _as_published(model_type: str, config: Any, keys: dict[str, Any]) -> dict[str, Any]:
    """The config as a file holds it: as the library writes it, and with the keys as the user wrote them."""
    written = json.loads(json.dumps(config.to_dict(), default=str))
    legacy = {"layer_types", "layers_block_type"} if any("pattern" in key or "idxs" in key for key in keys) else set()
    return {**{key: value for key, value in written.items() if key not in legacy}, **keys, "model_type": model_type}


@pytest.mark.parametrize("model_type", sorted(WEIGHT_RULES))
def test_class_defaults_count_as_transformers_does(model_type: str) -> None:
    needs = {} if model_type != "nemotron_h" else {"num_hidden_layers": 4, "hybrid_override_pattern": "ME*-"}
    expected = _parameters(model_type, _config(model_type, needs))
    keys = {**NEEDS.get(model_type, {}), **needs}
    spec = model_spec_from_config({"text_config": {"model_type": model_type, **keys}})
    assert spec.parameters is not None, spec.missing
    assert spec.parameters.total == expected


@pytest.mark.parametrize(("model_type", "keys"), VARIANTS, ids=lambda value: value if isinstance(value, str) else "")
def test_variants_count_as_transformers_does(model_type: str, keys: dict[str, Any]) -> None:
    config = _config(model_type, keys)
    spec = model_spec_from_config(_as_published(model_type, config, keys))
    assert spec.parameters is not None, spec.missing
    assert spec.parameters.total == _parameters(model_type, config)


@pytest.mark.parametrize("model_type", sorted(set(MODEL_TYPES) & set(class_defaults())))
def test_defaults_are_those_of_the_config_class(model_type: str) -> None:
    if model_type not in CONFIG_MAPPING:
        assert model_type == "mllama_text_model"
        return
    config = CONFIG_MAPPING[model_type]()
    written = config.to_dict()
    differing = {
        key: (value, written[key])
        for key, value in class_defaults()[model_type].items()
        if key in written and written[key] != value and written[key] is not None
    }
    assert set(differing) <= COMPUTED.get(model_type, set()), differing
