"""gpt_neox (Pythia), falcon, starcoder2, stablelm: LayerNorms, parallel blocks, q, k and v in one, partial rotation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvist.errors import UnsupportedError
from kvist.model.families.llama import LLAMA_HF, QWEN_GGUF
from kvist.model.families.settings import activation_setting, number_setting
from kvist.model.families.spec import DecoderSpec, Family, Names
from kvist.model.rope import rope_from_config

NEOX_HF = Names(
    embedding="gpt_neox.embed_in.weight",
    attention_norm="gpt_neox.layers.{n}.input_layernorm.weight",
    qkv=("gpt_neox.layers.{n}.attention.query_key_value.weight",),
    attention_output="gpt_neox.layers.{n}.attention.dense.weight",
    mlp_norm="gpt_neox.layers.{n}.post_attention_layernorm.weight",
    up=("gpt_neox.layers.{n}.mlp.dense_h_to_4h.weight",),
    down="gpt_neox.layers.{n}.mlp.dense_4h_to_h.weight",
    final_norm="gpt_neox.final_layer_norm.weight",
    output="embed_out.weight",
    other_output="lm_head.weight",
    has_grouped_qkv=True,
)
PLAIN_GGUF = replace(QWEN_GGUF, up=("blk.{n}.ffn_up.weight",))
FUSED_GGUF = replace(PLAIN_GGUF, qkv=("blk.{n}.attn_qkv.weight",))
FALCON_HF = Names(
    embedding="transformer.word_embeddings.weight",
    attention_norm="transformer.h.{n}.input_layernorm.weight",
    qkv=("transformer.h.{n}.self_attention.query_key_value.weight",),
    attention_output="transformer.h.{n}.self_attention.dense.weight",
    mlp_norm="transformer.h.{n}.post_attention_layernorm.weight",
    up=("transformer.h.{n}.mlp.dense_h_to_4h.weight",),
    down="transformer.h.{n}.mlp.dense_4h_to_h.weight",
    final_norm="transformer.ln_f.weight",
    output="lm_head.weight",
    has_grouped_qkv=True,
)
STARCODER_HF = replace(LLAMA_HF, up=("model.layers.{n}.mlp.c_fc.weight",), down="model.layers.{n}.mlp.c_proj.weight")
STABLELM_HF = replace(
    LLAMA_HF,
    q_norm="model.layers.{n}.self_attn.q_layernorm.norms.{h}.weight",
    k_norm="model.layers.{n}.self_attn.k_layernorm.norms.{h}.weight",
)
STABLELM_GGUF = QWEN_GGUF


def neox(config: Mapping[str, object], head_dim: int) -> DecoderSpec:
    """LayerNorms, biases, a quarter of each head rotated; attention and MLP side by side, each with its norm."""
    return DecoderSpec(
        norm="layer",
        norm_eps=number_setting(config, "layer_norm_eps", 1e-5),
        activation=activation_setting(config, "hidden_act", "gelu"),
        is_gated=False,
        rope=rope_from_config(config, head_dim, default_part=0.25, keys=("rotary_emb_base", "rotary_pct")),
        is_parallel=config.get("use_parallel_residual", True) is True,
    )


def falcon(config: Mapping[str, object], head_dim: int) -> DecoderSpec:
    """Parallel blocks with one norm, or two in the new architecture; sequential where the config says so."""
    if config.get("alibi"):
        raise UnsupportedError("a falcon with alibi positions isn't supported; kvist runs those with rotary ones")
    return DecoderSpec(
        norm="layer",
        norm_eps=number_setting(config, "layer_norm_epsilon", 1e-5),
        activation=activation_setting(config, "activation", "gelu"),
        is_gated=False,
        rope=rope_from_config(config, head_dim),
        is_parallel=_is_new_falcon(config) or config.get("parallel_attn", True) is True,
    )


def _is_new_falcon(config: Mapping[str, object]) -> bool:
    return config.get("new_decoder_architecture") is True


def _falcon_names(config: Mapping[str, object], names: Names) -> Names:
    """A parallel block's norms are one, or two under other names."""
    if not _is_new_falcon(config) and config.get("parallel_attn", True) is not True:
        return names
    is_huggingface = names.has_grouped_qkv
    if _is_new_falcon(config) and config.get("num_ln_in_parallel_attn") in (None, 2):
        if is_huggingface:
            at = "transformer.h.{n}."
            return replace(names, attention_norm=at + "ln_attn.weight", mlp_norm=at + "ln_mlp.weight")
        return replace(names, attention_norm="blk.{n}.attn_norm_2.weight", mlp_norm="blk.{n}.attn_norm.weight")
    return replace(names, mlp_norm="")


def starcoder2(config: Mapping[str, object], head_dim: int) -> DecoderSpec:
    """A llama of LayerNorms and biases with a plain MLP."""
    return DecoderSpec(
        norm="layer",
        norm_eps=number_setting(config, "norm_epsilon", 1e-5),
        activation=activation_setting(config, "hidden_act", "gelu_pytorch_tanh"),
        is_gated=False,
        rope=rope_from_config(config, head_dim),
    )


def stablelm(config: Mapping[str, object], head_dim: int) -> DecoderSpec:
    """A llama of LayerNorms, a quarter of each head rotated; in some, norms of q and k, or parallel blocks."""
    return DecoderSpec(
        norm="layer",
        norm_eps=number_setting(config, "layer_norm_eps", 1e-5),
        activation=activation_setting(config, "hidden_act", "silu"),
        is_gated=True,
        rope=rope_from_config(config, head_dim, default_part=0.25),
        qk_norm="each" if config.get("qk_layernorm") else "",
        is_parallel=config.get("use_parallel_residual") is True,
    )


def _one_norm_if_parallel(config: Mapping[str, object], names: Names) -> Names:
    return replace(names, mlp_norm="") if config.get("use_parallel_residual") is True else names


def _neox_biases(config: Mapping[str, object]) -> frozenset[str]:
    attention = ("qkv", "attention_output") if config.get("attention_bias", True) else ()
    return frozenset((*attention, "up", "down"))


def _all_if(key: str, default: bool, config: Mapping[str, object]) -> frozenset[str]:
    return frozenset(("qkv", "attention_output", "up", "down") if config.get(key, default) else ())


FAMILIES: dict[str, Family] = {
    "gpt_neox": Family(neox, NEOX_HF, FUSED_GGUF, _neox_biases),
    "falcon": Family(falcon, FALCON_HF, FUSED_GGUF, lambda config: _all_if("bias", False, config), _falcon_names),
    "starcoder2": Family(starcoder2, STARCODER_HF, PLAIN_GGUF, lambda config: _all_if("use_bias", True, config)),
    "stablelm": Family(
        stablelm,
        STABLELM_HF,
        STABLELM_GGUF,
        lambda config: frozenset(("qkv",) if config.get("use_qkv_bias") else ()),
        _one_norm_if_parallel,
    ),
}
