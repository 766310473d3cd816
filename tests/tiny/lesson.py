"""A Hugging Face config and its tensors as ``kvist.reference`` takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kvist.reference import GptConfig
from tiny.models import Config, TinyModel
from tiny.tensors import tensors

Weights = dict[str, np.ndarray[Any, Any]]

_LLAMA_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "mlp_norm",
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.o_proj": "o",
    "self_attn.q_norm": "q_norm",
    "self_attn.k_norm": "k_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}
_GPT2_NAMES = {"ln_1": "attn_norm", "attn.c_proj": "o", "ln_2": "mlp_norm", "mlp.c_fc": "up", "mlp.c_proj": "down"}


def lesson(model: TinyModel) -> tuple[Weights, GptConfig]:
    return lesson_weights(model.config, tensors(model)), lesson_config(model.config)


def lesson_config(config: Config) -> GptConfig:
    if config["model_type"] == "gpt2":
        heads, width = config["n_head"], config["n_embd"]
        eps = config["layer_norm_epsilon"]
        return GptConfig(config["n_layer"], heads, heads, width // heads, "learned", "layer", eps, mlp="plain")
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    ramp = None
    if scaling.get("rope_type", scaling.get("type")) == "llama3":
        ramp = (
            *(scaling[x] for x in ("low_freq_factor", "high_freq_factor")),
            scaling["original_max_position_embeddings"],
        )
    return GptConfig(
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        head_dim=config.get("head_dim", config["hidden_size"] // config["num_attention_heads"]),
        norm_eps=config["rms_norm_eps"],
        rope_theta=config.get("rope_theta") or config["rope_parameters"]["rope_theta"],
        rope_factor=scaling.get("factor", 1.0),
        rope_ramp=ramp,
        windows=windows(config),
    )


def windows(config: Config) -> tuple[int | None, ...]:
    num_layers, window = config["num_hidden_layers"], config.get("sliding_window")
    if config["model_type"] == "mistral":
        return (window,) * num_layers
    if not config.get("use_sliding_window"):
        return ()
    if "layer_types" in config:
        return tuple(window if kind == "sliding_attention" else None for kind in config["layer_types"])
    return tuple(window if number >= config["max_window_layers"] else None for number in range(num_layers))


def lesson_weights(config: Config, named: Mapping[str, np.ndarray[Any, Any]]) -> Weights:
    if config["model_type"] == "gpt2":
        return gpt2_weights(named)
    top = {"model.embed_tokens": "embed", "model.norm": "norm", "lm_head": "output"}
    weights: Weights = {}
    for name, array in named.items():
        stem, kind = name.rsplit(".", 1)
        if stem not in top:
            _, _, number, part = stem.split(".", 3)
            stem = f"layers.{number}.{_LLAMA_NAMES[part]}"
        weights[top.get(stem, stem) + (".bias" if kind == "bias" else "")] = array
    return weights


def gpt2_weights(named: Mapping[str, np.ndarray[Any, Any]]) -> Weights:
    top = {"transformer.wte": "embed", "transformer.wpe": "positions", "transformer.ln_f": "norm", "lm_head": "output"}
    weights: Weights = {}
    for name, array in named.items():
        stem, kind = name.rsplit(".", 1)
        suffix = ".bias" if kind == "bias" else ""
        if stem in top:
            weights[top[stem] + suffix] = array
            continue
        _, _, number, part = stem.split(".", 3)
        if part == "attn.c_attn":
            for short, third in zip("qkv", np.split(array, 3, axis=-1), strict=True):
                weights[f"layers.{number}.{short}{suffix}"] = third.T
        else:
            weights[f"layers.{number}.{_GPT2_NAMES[part]}{suffix}"] = array.T
    return weights
