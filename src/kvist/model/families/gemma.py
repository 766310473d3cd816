"""gemma (embeddings scaled, norms stored less 1), gemma2 (soft caps, norms around), gemma3 (two bases, qk norms)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import sqrt

from kvist.errors import UnsupportedError
from kvist.model.families.llama import LLAMA_HF, QWEN_GGUF, llama_biases
from kvist.model.families.settings import activation_setting, number_setting
from kvist.model.families.spec import DecoderSpec, Family
from kvist.model.rope import rope_from_config

GEMMA_HF = replace(LLAMA_HF, has_norms_less_one=True)
GEMMA2_HF = replace(
    GEMMA_HF,
    attention_post_norm="model.layers.{n}.post_attention_layernorm.weight",
    mlp_norm="model.layers.{n}.pre_feedforward_layernorm.weight",
    mlp_post_norm="model.layers.{n}.post_feedforward_layernorm.weight",
)
GEMMA_GGUF = QWEN_GGUF
GEMMA2_GGUF = replace(
    GEMMA_GGUF,
    attention_post_norm="blk.{n}.post_attention_norm.weight",
    mlp_post_norm="blk.{n}.post_ffw_norm.weight",
)


def gemma(config: Mapping[str, object], head_dim: int) -> DecoderSpec:
    """A llama with embeddings times sqrt(width), in f32 as the reference has it, and gelu's tanh form."""
    if config.get("use_bidirectional_attention"):
        raise UnsupportedError("a gemma whose attention looks ahead isn't supported; kvist runs those that generate")
    key = "hidden_act" if config.get("model_type") == "gemma" else "hidden_activation"
    activation = activation_setting(config, key, "gelu_pytorch_tanh")
    return DecoderSpec(
        norm="rms",
        norm_eps=number_setting(config, "rms_norm_eps", 1e-6),
        activation="gelu_tanh" if activation == "gelu" and key == "hidden_act" else activation,
        is_gated=True,
        rope=rope_from_config(config, head_dim),
        embedding_scale=sqrt(number_setting(config, "hidden_size", 1)),
    )


def gemma2(config: Mapping[str, object], head_dim: int) -> DecoderSpec:
    """Norms around attention and MLP, scores and logits kept below a cap, scores scaled by a number of their own."""
    return replace(
        gemma(config, head_dim),
        norm_place="around",
        score_scale=1 / sqrt(number_setting(config, "query_pre_attn_scalar", 256)),
        score_cap=_cap(config, "attn_logit_softcapping", 50.0),
        logit_cap=_cap(config, "final_logit_softcapping", 30.0),
    )


def gemma3(config: Mapping[str, object], head_dim: int) -> DecoderSpec:
    """Norms of q and k, no soft cap of scores, and window layers that rotate by a base of their own."""
    if config.get("attn_logit_softcapping"):
        raise UnsupportedError("a gemma3 with attn_logit_softcapping isn't supported: its reference ignores it")
    return replace(
        gemma2(config, head_dim),
        qk_norm="head",
        score_cap=0.0,
        logit_cap=_cap(config, "final_logit_softcapping", 0.0),
        rope=rope_from_config(config, head_dim, kind="full_attention", default_base=1_000_000.0),
        window_rope=rope_from_config(
            _local_rope(config), head_dim, kind="sliding_attention", keys=("rope_local_base_freq", "")
        ),
    )


def _cap(config: Mapping[str, object], key: str, default: float) -> float:
    """A soft cap; null switches it off."""
    return 0.0 if config.get(key, default) in (None, 0) else number_setting(config, key, default)


def _local_rope(config: Mapping[str, object]) -> Mapping[str, object]:
    """The config as window layers see it: in the older keys, the scaling is of full layers alone."""
    parameters = config.get("rope_parameters")
    if isinstance(parameters, Mapping) and "sliding_attention" in parameters:
        return config
    return {key: value for key, value in config.items() if key not in ("rope_parameters", "rope_scaling")}


FAMILIES: dict[str, Family] = {
    "gemma": Family(gemma, GEMMA_HF, GEMMA_GGUF, llama_biases),
    "gemma2": Family(gemma2, GEMMA2_HF, GEMMA2_GGUF, llama_biases),
    "gemma3_text": Family(gemma3, GEMMA2_HF, GEMMA2_GGUF, llama_biases),
}
