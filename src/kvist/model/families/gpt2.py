"""gpt2: learned positions, LayerNorms, biases everywhere, one matrix for q, k and v."""

from __future__ import annotations

from collections.abc import Mapping

from kvist.errors import UnsupportedError
from kvist.model.families.settings import activation_setting, number_setting
from kvist.model.families.spec import DecoderSpec, Family, Names

GPT2_HF = Names(
    embedding="wte.weight",
    positions="wpe.weight",
    attention_norm="h.{n}.ln_1.weight",
    qkv=("h.{n}.attn.c_attn.weight",),
    attention_output="h.{n}.attn.c_proj.weight",
    mlp_norm="h.{n}.ln_2.weight",
    up=("h.{n}.mlp.c_fc.weight",),
    down="h.{n}.mlp.c_proj.weight",
    final_norm="ln_f.weight",
    output="lm_head.weight",
    prefixes=("", "transformer."),
    is_transposed=True,
)
GPT2_GGUF = Names(
    embedding="token_embd.weight",
    positions="position_embd.weight",
    attention_norm="blk.{n}.attn_norm.weight",
    qkv=("blk.{n}.attn_qkv.weight",),
    attention_output="blk.{n}.attn_output.weight",
    mlp_norm="blk.{n}.ffn_norm.weight",
    up=("blk.{n}.ffn_up.weight",),
    down="blk.{n}.ffn_down.weight",
    final_norm="output_norm.weight",
    output="output.weight",
)


def gpt2(config: Mapping[str, object], _head_dim: int) -> DecoderSpec:
    if not config.get("scale_attn_weights", True) or config.get("scale_attn_by_inverse_layer_idx", False):
        raise UnsupportedError(
            "a gpt2 with another scale of its attention scores than 1/sqrt(head width) isn't supported"
        )
    return DecoderSpec(
        norm="layer",
        norm_eps=number_setting(config, "layer_norm_epsilon", 1e-5),
        activation=activation_setting(config, "activation_function", "gelu_new"),
        is_gated=False,
        rope=None,
    )


FAMILIES: dict[str, Family] = {
    "gpt2": Family(gpt2, GPT2_HF, GPT2_GGUF, lambda _config: frozenset(("qkv", "attention_output", "up", "down"))),
}
