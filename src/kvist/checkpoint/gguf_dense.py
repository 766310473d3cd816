"""GGUF's architectures of the families beyond llama's kin, granite's experts too, as rows of ``gguf_config``'s table.

What a file doesn't say is as llama.cpp has it: Gemma's scale of scores by the number of layers, SmolLM3's every fourth
layer without rotation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvist.checkpoint.gguf_architecture import LLAMA_KEYS, Architecture, Tensors
from kvist.checkpoint.gguf_keys import Keys, Real, Whole
from kvist.errors import UnsupportedError

_GEMMA2_LARGE, _GEMMA3_LARGE = 46, 62
"""Layers of the models (27B) whose scores are scaled by width / heads, not by the head's width."""


def _keys(**changes: Whole | Real) -> dict[str, Whole | Real]:
    """llama's keys with another norm's epsilon."""
    return {key: rule for key, rule in LLAMA_KEYS.items() if key != "rms_norm_eps"} | changes


_LAYER_NORM = Real("attention.layer_norm_epsilon")


def _present(found: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in found.items() if value is not None}


def _part(keys: Keys) -> float:
    """The share of a head's dims that is rotated."""
    width, heads = keys.required(Whole("embedding_length")), keys.required(Whole("attention.head_count"))
    head_dim = keys.whole("attention.key_length") or int(width // heads)
    return (keys.whole("rope.dimension_count") or head_dim) / head_dim


def _window(keys: Keys, _tensors: Tensors) -> dict[str, object]:
    return {"sliding_window": keys.whole("attention.sliding_window", minimum=0) or None}


def _score_scalar(keys: Keys, large: int) -> int:
    """What scores are divided by the root of."""
    heads = keys.required(Whole("attention.head_count"))
    by_heads = int(keys.required(Whole("embedding_length")) // heads)
    if keys.required(Whole("block_count")) == large:
        return by_heads
    return keys.whole("attention.key_length") or by_heads


def _gemma2(keys: Keys, _tensors: Tensors) -> dict[str, object]:
    return {
        "sliding_window": keys.whole("attention.sliding_window") or 4096,
        "attn_logit_softcapping": keys.real("attn_logit_softcapping") or 50.0,
        "final_logit_softcapping": keys.real("final_logit_softcapping") or 30.0,
        "query_pre_attn_scalar": _score_scalar(keys, _GEMMA2_LARGE),
    }


def _gemma3(keys: Keys, _tensors: Tensors) -> dict[str, object]:
    return {
        "sliding_window": keys.whole("attention.sliding_window", minimum=0) or None,
        "sliding_window_pattern": keys.whole("attention.sliding_window_pattern") or 6,
        "rope_local_base_freq": keys.real("rope.freq_base_swa") or 10000.0,
        "final_logit_softcapping": keys.real("final_logit_softcapping"),
        "query_pre_attn_scalar": _score_scalar(keys, _GEMMA3_LARGE),
    }


def _neox(keys: Keys, tensors: Tensors) -> dict[str, object]:
    return {
        "use_parallel_residual": keys.flag("use_parallel_residual", default=True),
        "attention_bias": "blk.0.attn_qkv.bias" in tensors,
        "rotary_emb_base": keys.real("rope.freq_base") or 10000.0,
        "rotary_pct": _part(keys),
    }


def _phi(keys: Keys, _tensors: Tensors) -> dict[str, object]:
    return {"partial_rotary_factor": _part(keys)}


def _falcon(keys: Keys, tensors: Tensors) -> dict[str, object]:
    """Whatever falcon, its KV heads are said and its norms are those in the file."""
    return {
        "new_decoder_architecture": True,
        "num_kv_heads": keys.required(Whole("attention.head_count_kv", same_as="attention.head_count")),
        "num_ln_in_parallel_attn": 2 if "blk.0.attn_norm_2.weight" in tensors else 1,
        "bias": "blk.0.attn_qkv.bias" in tensors,
    }


def _stablelm(keys: Keys, tensors: Tensors) -> dict[str, object]:
    return {
        "partial_rotary_factor": _part(keys),
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in tensors,
        "qk_layernorm": "blk.0.attn_q_norm.weight" in tensors,
        "use_qkv_bias": "blk.0.attn_q.bias" in tensors,
    }


def _granite(keys: Keys, _tensors: Tensors) -> dict[str, object]:
    width, heads = keys.required(Whole("embedding_length")), keys.required(Whole("attention.head_count"))
    head_dim = keys.whole("attention.key_length") or width // heads
    return {
        "embedding_multiplier": keys.real("embedding_scale") or 1.0,
        "residual_multiplier": keys.real("residual_scale") or 1.0,
        "attention_multiplier": keys.real("attention.scale") or head_dim**-0.5,
        "logits_scaling": keys.real("logit_scale") or 1.0,
    }


def _granitemoe(keys: Keys, tensors: Tensors) -> dict[str, object]:
    if keys.whole("expert_shared_feed_forward_length", minimum=0):
        raise UnsupportedError("a granitemoe with an expert that every token uses isn't supported; supported: without")
    return _granite(keys, tensors)


def _olmo(keys: Keys, _tensors: Tensors) -> dict[str, object]:
    return _present({"clip_qkv": keys.real("attention.clamp_kqv", may_be_zero=True) or None})


_GEMMA: dict[str, Any] = {"has_window": False, "biases": {"attention_bias": "blk.0.attn_q.bias"}}
_BIASES = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}
_SILU = {"hidden_act": "silu"}
_GRANITEMOE_KEYS: dict[str, Whole | Real] = {
    **LLAMA_KEYS,
    "num_local_experts": Whole("expert_count"),
    "num_experts_per_tok": Whole("expert_used_count"),
}

DENSE: dict[str, Architecture] = {
    "gemma": Architecture("gemma", LLAMA_KEYS, {"hidden_act": "gelu_pytorch_tanh"}, **_GEMMA),
    "gemma2": Architecture("gemma2", LLAMA_KEYS, {"hidden_activation": "gelu_pytorch_tanh"}, more=_gemma2, **_GEMMA),
    "gemma3": Architecture(
        "gemma3_text", LLAMA_KEYS, {"hidden_activation": "gelu_pytorch_tanh"}, more=_gemma3, **_GEMMA
    ),
    "phi2": Architecture(
        "phi", _keys(layer_norm_eps=_LAYER_NORM), {"hidden_act": "gelu_new"}, has_window=False, more=_phi
    ),
    "phi3": Architecture("phi3", LLAMA_KEYS, _SILU, has_window=False, more=_window),
    "gptneox": Architecture(
        "gpt_neox", _keys(layer_norm_eps=_LAYER_NORM), {"hidden_act": "gelu"}, has_window=False, more=_neox
    ),
    "falcon": Architecture(
        "falcon", _keys(layer_norm_epsilon=_LAYER_NORM), {"activation": "gelu"}, has_window=False, more=_falcon
    ),
    "starcoder2": Architecture(
        "starcoder2",
        _keys(norm_epsilon=_LAYER_NORM),
        {"hidden_act": "gelu_pytorch_tanh"},
        {"use_bias": "blk.0.attn_q.bias"},
        has_window=False,
        more=_window,
    ),
    "stablelm": Architecture("stablelm", _keys(layer_norm_eps=_LAYER_NORM), _SILU, has_window=False, more=_stablelm),
    "olmo": Architecture("olmo", _keys(), _SILU, _BIASES, has_window=False, more=_olmo),
    "olmo2": Architecture("olmo2", LLAMA_KEYS, _SILU, _BIASES, has_window=False),
    "granite": Architecture("granite", LLAMA_KEYS, _SILU, _BIASES, has_window=False, more=_granite),
    "granitemoe": Architecture("granitemoe", _GRANITEMOE_KEYS, _SILU, _BIASES, has_window=False, more=_granitemoe),
    "smollm3": Architecture("smollm3", LLAMA_KEYS, _SILU | {"no_rope_layer_interval": 4}, _BIASES, has_window=False),
}
