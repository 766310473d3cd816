"""Families with experts in the place of an MLP: mixtral, olmoe, qwen2_moe, qwen3_moe,
granitemoe, gpt_oss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvist.errors import SpecError, UnsupportedError
from kvist.model.families.llama import LLAMA_GGUF, LLAMA_HF, QWEN_GGUF, llama, llama_biases, qwen3
from kvist.model.families.olmo import granite
from kvist.model.families.spec import DecoderSpec, ExpertNames, Family, RoutingSpec
from kvist.model.rope import rope_from_config

SEPARATE = ExpertNames(
    router="model.layers.{n}.mlp.gate.weight",
    up=("model.layers.{n}.mlp.experts.{e}.gate_proj.weight", "model.layers.{n}.mlp.experts.{e}.up_proj.weight"),
    down="model.layers.{n}.mlp.experts.{e}.down_proj.weight",
)
FUSED = replace(
    SEPARATE, up=("model.layers.{n}.mlp.experts.gate_up_proj",), down="model.layers.{n}.mlp.experts.down_proj"
)
"""As transformers 5 keeps experts in memory."""
MIXTRAL = ExpertNames(
    router="model.layers.{n}.block_sparse_moe.gate.weight",
    up=(
        "model.layers.{n}.block_sparse_moe.experts.{e}.w1.weight",
        "model.layers.{n}.block_sparse_moe.experts.{e}.w3.weight",
    ),
    down="model.layers.{n}.block_sparse_moe.experts.{e}.w2.weight",
)
GGUF = ExpertNames(
    router="blk.{n}.ffn_gate_inp.weight",
    up=("blk.{n}.ffn_gate_exps.weight", "blk.{n}.ffn_up_exps.weight"),
    down="blk.{n}.ffn_down_exps.weight",
)
SHARED = replace(
    SEPARATE,
    shared_up=(
        "model.layers.{n}.mlp.shared_expert.gate_proj.weight",
        "model.layers.{n}.mlp.shared_expert.up_proj.weight",
    ),
    shared_down="model.layers.{n}.mlp.shared_expert.down_proj.weight",
    shared_gate="model.layers.{n}.mlp.shared_expert_gate.weight",
)
GGUF_SHARED = replace(
    GGUF,
    shared_up=("blk.{n}.ffn_gate_shexp.weight", "blk.{n}.ffn_up_shexp.weight"),
    shared_down="blk.{n}.ffn_down_shexp.weight",
    shared_gate="blk.{n}.ffn_gate_inp_shexp.weight",
)
GPT_OSS = ExpertNames(
    router="model.layers.{n}.mlp.router.weight",
    up=("model.layers.{n}.mlp.experts.gate_up_proj",),
    down="model.layers.{n}.mlp.experts.down_proj",
    is_transposed=True,
    is_interleaved=True,
    bias_ending="_bias",
)
GRANITE = ExpertNames(
    router="model.layers.{n}.block_sparse_moe.router.layer.weight",
    up=("model.layers.{n}.block_sparse_moe.input_linear.weight",),
    down="model.layers.{n}.block_sparse_moe.output_linear.weight",
)
GGUF_FUSED = replace(GGUF, up=("blk.{n}.ffn_gate_up_exps.weight",))
"""As files since 2026 may have gate and up."""
GGUF_SEPARATE = replace(
    GGUF, up=("blk.{n}.ffn_gate.{e}.weight", "blk.{n}.ffn_up.{e}.weight"), down="blk.{n}.ffn_down.{e}.weight"
)
"""As files before April 2024 have them."""


def mixtral(config: Mapping[str, object], head_dim: int) -> DecoderSpec:
    """llama with experts; a softmax over those that were chosen is one over all, divided by the chosen ones' sum."""
    return replace(llama(config, head_dim), routing=RoutingSpec())


def qwen3_moe(config: Mapping[str, object], head_dim: int) -> DecoderSpec:
    """qwen3 with experts."""
    return replace(qwen3(config, head_dim), routing=RoutingSpec(is_normed=is_normed(config)))


def qwen2_moe(config: Mapping[str, object], head_dim: int) -> DecoderSpec:
    """qwen2 with experts, one of which every token uses."""
    return replace(llama(config, head_dim), routing=RoutingSpec(is_normed=is_normed(config)))


def olmoe(config: Mapping[str, object], head_dim: int) -> DecoderSpec:
    """llama with experts, and norms over all of q and all of k."""
    if config.get("clip_qkv") is not None:
        raise UnsupportedError("an olmoe with clip_qkv isn't supported; supported: null")
    return replace(llama(config, head_dim), qk_norm="all", routing=RoutingSpec(is_normed=is_normed(config)))


def granitemoe(config: Mapping[str, object], head_dim: int) -> DecoderSpec:
    """granite with experts."""
    return replace(granite(config, head_dim), routing=RoutingSpec(scores="chosen"))


def gpt_oss(config: Mapping[str, object], head_dim: int) -> DecoderSpec:
    """Experts with biases and a clamped activation of their own."""
    for key, expected in (("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)):
        if config.get(key, expected) != expected:
            raise UnsupportedError(f"a gpt_oss with {key} {config[key]!r} isn't supported; supported: {expected}")
    routing = RoutingSpec(scores="chosen")
    rope = rope_from_config(config, head_dim, default_base=150_000.0)
    return replace(llama(config, head_dim), rope=rope, activation="swiglu_clamped", routing=routing)


def gpt_oss_biases(config: Mapping[str, object]) -> frozenset[str]:
    """Everywhere, but where the config says otherwise of attention."""
    attention = ("qkv", "attention_output") if config.get("attention_bias", True) else ()
    return frozenset((*attention, "experts"))


def is_normed(config: Mapping[str, object]) -> bool:
    """Whether what experts' results are multiplied with is divided by its sum."""
    flag = config.get("norm_topk_prob", False)
    if not isinstance(flag, bool):
        raise SpecError(f"norm_topk_prob must be true or false, got {flag!r}")
    return flag


FAMILIES: dict[str, Family] = {
    "mixtral": Family(
        mixtral,
        replace(LLAMA_HF, experts=(MIXTRAL, FUSED)),
        replace(LLAMA_GGUF, experts=(GGUF, GGUF_FUSED, GGUF_SEPARATE)),
    ),
    "olmoe": Family(
        olmoe,
        replace(LLAMA_HF, experts=(SEPARATE, FUSED)),
        replace(QWEN_GGUF, experts=(GGUF, GGUF_FUSED)),
        llama_biases,
    ),
    "granitemoe": Family(
        granitemoe,
        replace(LLAMA_HF, experts=(GRANITE,)),
        replace(LLAMA_GGUF, experts=(GGUF, GGUF_FUSED)),
        llama_biases,
    ),
    "qwen3_moe": Family(
        qwen3_moe,
        replace(LLAMA_HF, experts=(SEPARATE, FUSED)),
        replace(QWEN_GGUF, experts=(GGUF, GGUF_FUSED)),
        llama_biases,
    ),
    "qwen2_moe": Family(
        qwen2_moe,
        replace(LLAMA_HF, experts=(SHARED, replace(SHARED, up=FUSED.up, down=FUSED.down))),
        replace(QWEN_GGUF, experts=(GGUF_SHARED,)),
        lambda config: frozenset(("qkv",) if config.get("qkv_bias", True) else ()),
    ),
    "gpt_oss": Family(
        gpt_oss,
        replace(LLAMA_HF, experts=(GPT_OSS,), nothing="model.layers.{n}.self_attn.sinks"),
        replace(
            QWEN_GGUF,
            mlp_norm="blk.{n}.post_attention_norm.weight",
            experts=(GGUF,),
            nothing="blk.{n}.attn_sinks.weight",
        ),
        gpt_oss_biases,
    ),
}
