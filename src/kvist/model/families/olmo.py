"""olmo (LayerNorms without weights), olmo2 (norms only after), granite (multipliers), smollm3 (layers without rope)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvist.errors import SpecError, UnsupportedError
from kvist.model.families.llama import LLAMA_GGUF, LLAMA_HF, QWEN_GGUF, llama, llama_biases
from kvist.model.families.settings import activation_setting, number_setting
from kvist.model.families.spec import DecoderSpec, Family
from kvist.model.rope import rope_from_config

OLMO_HF = replace(LLAMA_HF, attention_norm="", mlp_norm="", final_norm="")
OLMO_GGUF = replace(LLAMA_GGUF, attention_norm="", mlp_norm="", final_norm="")
OLMO2_HF = replace(
    LLAMA_HF,
    attention_norm="",
    attention_post_norm="model.layers.{n}.post_attention_layernorm.weight",
    mlp_norm="",
    mlp_post_norm="model.layers.{n}.post_feedforward_layernorm.weight",
)
OLMO2_GGUF = replace(
    QWEN_GGUF,
    attention_norm="",
    attention_post_norm="blk.{n}.post_attention_norm.weight",
    mlp_norm="",
    mlp_post_norm="blk.{n}.post_ffw_norm.weight",
)


def olmo(config: Mapping[str, object], head_dim: int) -> DecoderSpec:
    """A llama of LayerNorms without weights."""
    if config.get("clip_qkv") is not None:
        raise UnsupportedError(f"an olmo with clip_qkv {config['clip_qkv']} isn't supported; kvist runs those without")
    return DecoderSpec(
        norm="layer",
        norm_eps=1e-5,
        activation=activation_setting(config, "hidden_act", "silu"),
        is_gated=True,
        rope=rope_from_config(config, head_dim),
    )


def olmo2(config: Mapping[str, object], head_dim: int) -> DecoderSpec:
    """A llama whose norms stand after attention and MLP, with norms of all of q and all of k."""
    return replace(
        llama(config, head_dim),
        norm_eps=number_setting(config, "rms_norm_eps", 1e-5),
        norm_place="after",
        qk_norm="all",
    )


def granite(config: Mapping[str, object], head_dim: int) -> DecoderSpec:
    """A llama whose embeddings, scores, branches and logits are multiplied with numbers of their own."""
    return replace(
        llama(config, head_dim),
        embedding_scale=number_setting(config, "embedding_multiplier", 1.0),
        residual_scale=number_setting(config, "residual_multiplier", 1.0),
        score_scale=number_setting(config, "attention_multiplier", 1.0),
        logit_scale=1 / number_setting(config, "logits_scaling", 1.0),
    )


def smollm3(config: Mapping[str, object], head_dim: int) -> DecoderSpec:
    """A llama some of whose layers, every fourth unless the config lists them, turn nothing."""
    spec = llama(config, head_dim)
    num_layers = int(number_setting(config, "num_hidden_layers", 36))
    listed = config.get("no_rope_layers")
    if listed is None:
        interval = int(number_setting(config, "no_rope_layer_interval", 4))
        listed = [(number + 1) % interval != 0 for number in range(num_layers)]
    if not isinstance(listed, list) or len(listed) != num_layers:
        raise SpecError(f"no_rope_layers must list each of {num_layers} layers, got {listed!r}")
    rope = rope_from_config(config, head_dim, default_base=2_000_000.0)
    return replace(spec, rope=rope, unrotated=frozenset(number for number, has in enumerate(listed) if not has))


FAMILIES: dict[str, Family] = {
    "olmo": Family(olmo, OLMO_HF, OLMO_GGUF, llama_biases),
    "olmo2": Family(olmo2, OLMO2_HF, OLMO2_GGUF, llama_biases),
    "granite": Family(granite, LLAMA_HF, LLAMA_GGUF, llama_biases),
    "smollm3": Family(smollm3, LLAMA_HF, LLAMA_GGUF, llama_biases),
}
