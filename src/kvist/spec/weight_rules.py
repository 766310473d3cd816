"""What the weights of each model type are made of, by the reference implementation's model code: one row a type.

A type without a row has an unknown number of parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvist.spec import experts, extras, mixers
from kvist.spec.experts import ExpertRules
from kvist.spec.fields import Fields
from kvist.spec.model import LayerSpec
from kvist.spec.weights import WeightRules


def _falcon_norms(fields: Fields) -> int:
    if fields.flag("new_decoder_architecture"):
        return fields.maybe_count("num_ln_in_parallel_attn") or 2
    return 1 if fields.flag("parallel_attn") else 2


def _one_if_parallel(fields: Fields) -> int:
    return 1 if fields.flag("use_parallel_residual") else 2


def _context(key: str, offset: int = 0) -> extras.Count:
    return lambda fields: fields.count(key) + offset


def _sinks(_fields: Fields, layer: LayerSpec) -> int:
    return layer.num_heads


def _window_sinks(_fields: Fields, layer: LayerSpec) -> int:
    return layer.num_heads if layer.kind == "window" else 0


def _activation_pair(_fields: Fields, _layer: LayerSpec) -> int:
    return 2


def _sub_norms(fields: Fields, layer: LayerSpec) -> int:
    return layer.num_heads * layer.k_dim + fields.count("intermediate_size")


def _attention_gate(fields: Fields, layer: LayerSpec) -> int:
    return fields.count("hidden_size") * layer.num_heads * layer.k_dim


def _embedding_norm(fields: Fields, _layers: Sequence[LayerSpec]) -> int:
    return 2 * fields.count("hidden_size", "n_embed", "n_embd")


_PLAIN = WeightRules()
_LLAMA = WeightRules(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias")
_QWEN3 = WeightRules(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head")
_SANDWICH = WeightRules(qkv_bias="attention_bias", out_bias="attention_bias", norms=4)
_BIASED = WeightRules(qkv_bias=True, out_bias=True, is_gated=False, mlp_bias=True, norm=2)
_GPT2 = replace(_BIASED, mlp_width=extras.four_times("n_inner"), positions=_context("n_positions"))
_GPTJ = WeightRules(
    is_gated=False, mlp_bias=True, mlp_width=extras.four_times("n_inner"), norm=2, norms=1, head_bias=True
)
_BART = replace(
    _BIASED,
    mlp_width=extras.stated("decoder_ffn_dim"),
    norms=3,
    positions=_context("max_position_embeddings", 2),
    extra_layer=extras.bart_cross,
    extra_model=extras.bart_encoder(final_norms=1, position_offset=2),
)
_T5 = WeightRules(
    is_gated=extras.t5_is_gated,
    mlp_width=extras.stated("d_ff"),
    norms=3,
    extra_layer=extras.t5_cross,
    extra_model=extras.t5_encoder,
)
_MAMBA1 = WeightRules(mixer=mixers.mamba, norms=1, is_single_block=True)
_GRANITE_MOE = WeightRules(
    qkv_bias="attention_bias",
    out_bias="attention_bias",
    experts=ExpertRules(width=("intermediate_size",), shared=experts.wide("shared_intermediate_size")),
)
_DEEPSEEK = WeightRules(
    experts=ExpertRules(
        experts.after_dense("first_k_dense_replace"), ("moe_intermediate_size",), experts.counted("n_shared_experts")
    )
)
_QWEN_MOE = ExpertRules(experts.sparse_steps, ("moe_intermediate_size",))
_QWEN_SHARED = ExpertRules(
    experts.sparse_steps,
    ("moe_intermediate_size",),
    experts.wide("shared_expert_intermediate_size"),
    shared_gate=True,
)
_QWEN3_NEXT = replace(_QWEN3, has_query_gate=True, mixer=mixers.gated_delta_net, experts=_QWEN_SHARED)

WEIGHT_RULES: Mapping[str, WeightRules] = {
    "afmoe": replace(
        _SANDWICH,
        qk_norm="head",
        extra_layer=_attention_gate,
        experts=ExpertRules(
            experts.after_dense("num_dense_layers"),
            ("moe_intermediate_size",),
            experts.counted("num_shared_experts"),
            router_bias=True,
        ),
    ),
    "apertus": replace(_LLAMA, qk_norm="head", is_gated=False, extra_layer=_activation_pair),
    "arcee": replace(_LLAMA, is_gated=False),
    "bamba": replace(_LLAMA, mixer=mixers.mamba2),
    "bart": _BART,
    "bitnet": replace(_LLAMA, mlp_bias=False, extra_layer=_sub_norms),
    "bloom": replace(_BIASED, mlp_width=extras.four_times("n_inner"), extra_model=_embedding_norm),
    "codegen": _GPTJ,
    "cohere": replace(_LLAMA, mlp_bias=False, norms=1, qk_norm="all", qk_norm_if="use_qk_norm"),
    "cohere2": replace(_LLAMA, mlp_bias=False, norms=1),
    "cwm": replace(_PLAIN, mlp_bias=False),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _DEEPSEEK,
    "dots1": replace(_DEEPSEEK, qkv_bias="attention_bias", qk_norm="head"),
    "ernie4_5": WeightRules(qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias"),
    "ernie4_5_moe": WeightRules(
        qkv_bias="use_bias",
        out_bias="use_bias",
        mlp_bias="use_bias",
        experts=ExpertRules(
            experts.ernie, ("moe_intermediate_size",), experts.counted("moe_num_shared_experts"), router_bias=True
        ),
    ),
    "exaone4": replace(_PLAIN, qk_norm="head"),
    "falcon": WeightRules(
        qkv_bias="bias",
        out_bias="bias",
        is_gated=False,
        mlp_bias="bias",
        mlp_width=extras.four_times("ffn_hidden_size"),
        norm=2,
        norms=_falcon_norms,
    ),
    "falcon_h1": replace(_LLAMA, mixer=mixers.falcon_h1),
    "falcon_mamba": _MAMBA1,
    "gemma": replace(_LLAMA, mlp_bias=False),
    "gemma2": _SANDWICH,
    "gemma3_text": replace(_SANDWICH, qk_norm="head"),
    "gemma3n_text": replace(
        _SANDWICH,
        qk_norm="head",
        mlp_width=extras.first_of_list("intermediate_size"),
        extra_layer=extras.gemma3n_layer,
        extra_model=extras.gemma3n_model,
    ),
    "gemma4_text": replace(
        _SANDWICH,
        qk_norm="head",
        dense_beside_experts=True,
        extra_layer=extras.gemma4_layer,
        extra_model=extras.gemma4_model,
        experts=ExpertRules(extras.gemma4_has_experts, ("moe_intermediate_size",), router_bias=True),
    ),
    "glm": replace(_PLAIN, qkv_bias="attention_bias"),
    "glm4": replace(_PLAIN, qkv_bias="attention_bias", norms=4),
    "glm4_moe": replace(_DEEPSEEK, qkv_bias="attention_bias", qk_norm="head", qk_norm_if="use_qk_norm"),
    "glm4_moe_lite": replace(
        _DEEPSEEK,
        experts=ExpertRules(
            experts.stated_or(extras.all_but_first), ("moe_intermediate_size",), experts.counted("n_shared_experts")
        ),
    ),
    "glm_moe_dsa": _DEEPSEEK,
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2,
    "gpt_neo": WeightRules(
        out_bias=True,
        is_gated=False,
        mlp_bias=True,
        mlp_width=extras.four_times("intermediate_size"),
        norm=2,
        positions=_context("max_position_embeddings"),
    ),
    "gpt_neox": replace(_BIASED, qkv_bias="attention_bias", out_bias="attention_bias"),
    "gpt_oss": WeightRules(
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        extra_layer=_sinks,
        experts=ExpertRules(width=("intermediate_size",), bias=True, router_bias=True),
    ),
    "gptj": _GPTJ,
    "granite": _LLAMA,
    "granitemoe": replace(_GRANITE_MOE, experts=ExpertRules(width=("intermediate_size",))),
    "granitemoehybrid": replace(
        _GRANITE_MOE,
        mixer=mixers.mamba2,
        dense_beside_experts=True,
        mlp_width=experts.wide("shared_intermediate_size"),
        experts=ExpertRules(experts.if_any, ("intermediate_size",)),
    ),
    "granitemoeshared": _GRANITE_MOE,
    "helium": replace(_PLAIN, qkv_bias="attention_bias", mlp_bias="mlp_bias"),
    "hunyuan_v1_dense": replace(_LLAMA, mlp_bias=False, qk_norm="head"),
    "hunyuan_v1_moe": replace(
        _LLAMA,
        mlp_bias=False,
        qk_norm="head",
        experts=ExpertRules(width=("intermediate_size",), shared=experts.wide("intermediate_size")),
    ),
    "internlm3": WeightRules(qkv_bias="qkv_bias", out_bias="bias", mlp_bias="bias"),
    "jamba": WeightRules(mixer=mixers.jamba, experts=ExpertRules(experts.jamba, ("intermediate_size",))),
    "kimi_linear": replace(
        _DEEPSEEK,
        mixer=mixers.kimi_delta,
        experts=ExpertRules(
            experts.after_dense("first_k_dense_replace"),
            ("moe_intermediate_size",),
            experts.counted("num_shared_experts", "n_shared_experts"),
        ),
        unknown_keys=("routed_expert_hidden_size", "attn_res_block_size", "mla_use_output_gate"),
    ),
    "lfm2": WeightRules(qk_norm="head", mixer=mixers.short_convolution, mlp_width=extras.lfm2_width),
    "lfm2_moe": WeightRules(
        qk_norm="head",
        mixer=mixers.short_convolution,
        experts=ExpertRules(experts.after_dense("num_dense_layers"), ("moe_intermediate_size",)),
    ),
    "llama": _LLAMA,
    "llama4_text": replace(
        _LLAMA,
        mlp_bias=False,
        dense_width=extras.stated("intermediate_size_mlp"),
        experts=ExpertRules(experts.llama4, ("intermediate_size",), experts.wide("intermediate_size")),
    ),
    "m2m_100": replace(_BART, positions=None, extra_model=extras.bart_encoder(final_norms=1, position_offset=None)),
    "mamba": _MAMBA1,
    "mamba2": WeightRules(mixer=mixers.mamba2, norms=1, is_single_block=True),
    "marian": replace(
        _BART,
        positions=_context("max_position_embeddings"),
        final_norms=0,
        extra_model=extras.bart_encoder(final_norms=0, position_offset=0),
    ),
    "mbart": replace(_BART, final_norms=2, extra_model=extras.bart_encoder(final_norms=2, position_offset=2)),
    "mimo_v2_flash": WeightRules(
        qkv_bias="attention_bias",
        extra_layer=_window_sinks,
        experts=ExpertRules(experts.stated_or(extras.all_but_first), ("moe_intermediate_size",)),
    ),
    "minicpm3": replace(_PLAIN, mlp_bias="mlp_bias"),
    "minimax": WeightRules(mixer=mixers.lightning, experts=ExpertRules(width=("intermediate_size",))),
    "minimax_m2": WeightRules(qk_norm="all", experts=ExpertRules(width=("intermediate_size",))),
    "ministral": _PLAIN,
    "ministral3": _PLAIN,
    "mistral": _PLAIN,
    "mixtral": WeightRules(experts=ExpertRules(width=("intermediate_size",))),
    "mpt": WeightRules(is_gated=False, mlp_width=extras.mpt_width),
    "mt5": _T5,
    "nemotron": replace(_LLAMA, is_gated=False, norm=2),
    "nemotron_h": WeightRules(
        is_gated=False,
        mlp_bias="mlp_bias",
        norms=1,
        mixer=mixers.mamba2,
        is_single_block=True,
        experts=ExpertRules(
            extras.nemotron_h_has_experts,
            ("moe_intermediate_size",),
            experts.wide("moe_shared_expert_intermediate_size"),
            is_gated=False,
        ),
        unknown_keys=("moe_latent_size",),
    ),
    "olmo": replace(_LLAMA, mlp_bias=False, norm=0),
    "olmo2": replace(_LLAMA, mlp_bias=False, qk_norm="all"),
    "olmo3": replace(_LLAMA, mlp_bias=False, qk_norm="all"),
    "olmo_hybrid": replace(_LLAMA, mlp_bias=False, qk_norm="all", mixer=mixers.gated_delta_net),
    "olmoe": replace(_LLAMA, mlp_bias=False, qk_norm="all", experts=ExpertRules(width=("intermediate_size",))),
    "opt": replace(
        _BIASED,
        qkv_bias="enable_bias",
        out_bias="enable_bias",
        mlp_bias="enable_bias",
        mlp_width=extras.stated("ffn_dim"),
        positions=_context("max_position_embeddings", 2),
        extra_model=extras.opt_projections,
    ),
    "pegasus": replace(
        _BART,
        positions=_context("max_position_embeddings"),
        extra_model=extras.bart_encoder(final_norms=1, position_offset=0),
    ),
    "phi": replace(_BIASED, norms=1, head_bias=True, unknown_keys=("qk_layernorm",)),
    "phi3": _PLAIN,
    "phimoe": WeightRules(
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        norm=2,
        head_bias="lm_head_bias",
        experts=ExpertRules(width=("intermediate_size",)),
    ),
    "qwen2": replace(_PLAIN, qkv_bias=True),
    "qwen2_moe": replace(_PLAIN, qkv_bias="qkv_bias", experts=_QWEN_SHARED),
    "qwen3": _QWEN3,
    "qwen3_5_moe_text": replace(_QWEN3_NEXT, experts=replace(_QWEN_SHARED, where=experts.everywhere)),
    "qwen3_5_text": replace(_QWEN3_NEXT, experts=None),
    "qwen3_moe": replace(_QWEN3, experts=_QWEN_MOE),
    "qwen3_next": _QWEN3_NEXT,
    "recurrent_gemma": WeightRules(
        qkv_bias="attention_bias",
        out_bias=True,
        mlp_bias=True,
        mlp_width=extras.half("intermediate_size"),
        mixer=mixers.linear_recurrent_unit,
    ),
    "seed_oss": WeightRules(qkv_bias="attention_bias", out_bias="attention_out_bias", mlp_bias="mlp_bias"),
    "smollm3": _LLAMA,
    "stablelm": WeightRules(
        qkv_bias="use_qkv_bias", norm=2, norms=_one_if_parallel, qk_norm="all", qk_norm_if="qk_layernorm"
    ),
    "starcoder2": replace(_BIASED, qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias"),
    "t5": _T5,
    "umt5": replace(_T5, extra_model=extras.umt5_encoder),
    "whisper": replace(
        _BART,
        positions=_context("max_target_positions"),
        extra_layer=extras.whisper_cross,
        extra_model=extras.whisper_encoder,
    ),
}
