"""phi3: a llama with one matrix for q, k and v, and one for gate and up. phi: parallel blocks with one LayerNorm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvist.errors import UnsupportedError
from kvist.model.families.llama import LLAMA_HF, QWEN_GGUF
from kvist.model.families.settings import activation_setting, number_setting
from kvist.model.families.spec import DecoderSpec, Family, Names
from kvist.model.rope import rope_from_config

PHI3_HF = replace(
    LLAMA_HF,
    qkv=("model.layers.{n}.self_attn.qkv_proj.weight",),
    up=("model.layers.{n}.mlp.gate_up_proj.weight",),
)
PHI3_GGUF = replace(QWEN_GGUF, qkv=("blk.{n}.attn_qkv.weight",), up=("blk.{n}.ffn_up.weight",))
PHI_HF = Names(
    embedding="model.embed_tokens.weight",
    attention_norm="model.layers.{n}.input_layernorm.weight",
    qkv=(
        "model.layers.{n}.self_attn.q_proj.weight",
        "model.layers.{n}.self_attn.k_proj.weight",
        "model.layers.{n}.self_attn.v_proj.weight",
    ),
    attention_output="model.layers.{n}.self_attn.dense.weight",
    mlp_norm="",
    up=("model.layers.{n}.mlp.fc1.weight",),
    down="model.layers.{n}.mlp.fc2.weight",
    final_norm="model.final_layernorm.weight",
    output="lm_head.weight",
)
PHI_GGUF = replace(QWEN_GGUF, fused_qkv="blk.{n}.attn_qkv.weight", mlp_norm="", up=("blk.{n}.ffn_up.weight",))


def phi3(config: Mapping[str, object], head_dim: int) -> DecoderSpec:
    """A llama; what its configs call su or yarn is longrope."""
    rope = rope_from_config(config, head_dim)
    if rope.scaling == "yarn":
        rope = replace(rope, scaling="longrope")
    return DecoderSpec(
        norm="rms",
        norm_eps=number_setting(config, "rms_norm_eps", 1e-5),
        activation=activation_setting(config, "hidden_act", "silu"),
        is_gated=True,
        rope=rope,
    )


def phi(config: Mapping[str, object], head_dim: int) -> DecoderSpec:
    """Attention and MLP read the same LayerNorm; half of each head is rotated unless the config says otherwise."""
    if config.get("qk_layernorm"):
        raise UnsupportedError("a phi with qk_layernorm isn't supported; kvist runs those without, as phi-1, 1.5 and 2")
    return DecoderSpec(
        norm="layer",
        norm_eps=number_setting(config, "layer_norm_eps", 1e-5),
        activation=activation_setting(config, "hidden_act", "gelu_new"),
        is_gated=False,
        rope=rope_from_config(config, head_dim, default_part=0.5),
        is_parallel=True,
    )


FAMILIES: dict[str, Family] = {
    "phi3": Family(phi3, PHI3_HF, PHI3_GGUF),
    "phi": Family(
        phi,
        PHI_HF,
        PHI_GGUF,
        lambda _config: frozenset(("qkv", "attention_output", "up", "down", "output")),
    ),
}
