"""llama and what is built like it: mistral, qwen2, qwen3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvist.model.families.settings import activation_setting, number_setting
from kvist.model.families.spec import DecoderSpec, Family, Names
from kvist.model.rope import rope_from_config

LLAMA_HF = Names(
    embedding="model.embed_tokens.weight",
    attention_norm="model.layers.{n}.input_layernorm.weight",
    qkv=(
        "model.layers.{n}.self_attn.q_proj.weight",
        "model.layers.{n}.self_attn.k_proj.weight",
        "model.layers.{n}.self_attn.v_proj.weight",
    ),
    attention_output="model.layers.{n}.self_attn.o_proj.weight",
    mlp_norm="model.layers.{n}.post_attention_layernorm.weight",
    up=("model.layers.{n}.mlp.gate_proj.weight", "model.layers.{n}.mlp.up_proj.weight"),
    down="model.layers.{n}.mlp.down_proj.weight",
    final_norm="model.norm.weight",
    output="lm_head.weight",
    q_norm="model.layers.{n}.self_attn.q_norm.weight",
    k_norm="model.layers.{n}.self_attn.k_norm.weight",
)
LLAMA_GGUF = Names(
    embedding="token_embd.weight",
    attention_norm="blk.{n}.attn_norm.weight",
    qkv=("blk.{n}.attn_q.weight", "blk.{n}.attn_k.weight", "blk.{n}.attn_v.weight"),
    attention_output="blk.{n}.attn_output.weight",
    mlp_norm="blk.{n}.ffn_norm.weight",
    up=("blk.{n}.ffn_gate.weight", "blk.{n}.ffn_up.weight"),
    down="blk.{n}.ffn_down.weight",
    final_norm="output_norm.weight",
    output="output.weight",
    q_norm="blk.{n}.attn_q_norm.weight",
    k_norm="blk.{n}.attn_k_norm.weight",
    has_paired_rows=True,
)
QWEN_GGUF = replace(LLAMA_GGUF, has_paired_rows=False)


def llama(config: Mapping[str, object], head_dim: int) -> DecoderSpec:
    """RMSNorms, rotary positions, a gated MLP."""
    return DecoderSpec(
        norm="rms",
        norm_eps=number_setting(config, "rms_norm_eps", 1e-6),
        activation=activation_setting(config, "hidden_act", "silu"),
        is_gated=True,
        rope=rope_from_config(config, head_dim),
    )


def qwen3(config: Mapping[str, object], head_dim: int) -> DecoderSpec:
    """The same with norms on q and k."""
    return replace(llama(config, head_dim), qk_norm="head")


def llama_biases(config: Mapping[str, object]) -> frozenset[str]:
    """The matrices that have biases where the config says so."""
    attention = ("qkv", "attention_output") if config.get("attention_bias") else ()
    return frozenset((*attention, *(("up", "down") if config.get("mlp_bias") else ())))


FAMILIES: dict[str, Family] = {
    "llama": Family(llama, LLAMA_HF, LLAMA_GGUF, llama_biases),
    "mistral": Family(llama, LLAMA_HF, LLAMA_GGUF),
    "qwen2": Family(llama, LLAMA_HF, QWEN_GGUF, lambda _config: frozenset(("qkv",))),
    "qwen3": Family(qwen3, LLAMA_HF, QWEN_GGUF, llama_biases),
}
