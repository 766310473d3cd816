"""The tensors of a tiny model under Hugging Face's names, and a directory that holds them.

Matrices have deviation 1 / sqrt(fan_in), norms are 1 + 0.3 x normal (Gemma stores them less 1), biases 0.3 x normal:
logits then spread near 1, so that every switch of a model shows far above float rounding (the library's own
initialisation hides most).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tiny.deepseek_tensors import deepseek_shapes
from tiny.experts import EXPERT_FAMILIES, expert_shapes, has_experts
from tiny.models import Config, TinyModel
from tiny.shapes import LAYERS, Shapes, dense_shapes, linear
from tiny.stream import Stream

Array = np.ndarray[Any, np.dtype[np.float32]]


def tensor_shapes(config: Config) -> Shapes:
    """Return the shape of every tensor that a checkpoint of this config has."""
    if config["model_type"] in LAYERS:
        return dense_shapes(config)
    if config["model_type"].startswith("deepseek"):
        return deepseek_shapes(config)
    return gpt2_shapes(config) if config["model_type"] == "gpt2" else llama_shapes(config)


def llama_shapes(config: Config) -> Shapes:
    width, family = config["hidden_size"], config["model_type"]
    shapes: Shapes = {"model.embed_tokens.weight": (config["vocab_size"], width), "model.norm.weight": (width,)}
    head_dim = config.get("head_dim", width // config["num_attention_heads"])
    q, kv, mlp = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim, "intermediate_size"
    attention_bias, mlp_bias = config.get("attention_bias", False), config.get("mlp_bias", False)
    for number in range(config["num_hidden_layers"]):
        at = f"model.layers.{number}."
        shapes |= {at + "input_layernorm.weight": (width,), at + "post_attention_layernorm.weight": (width,)}
        shapes |= linear(at + "self_attn.q_proj", q, width, attention_bias or family in ("qwen2", "qwen2_moe"))
        shapes |= linear(at + "self_attn.k_proj", kv, width, attention_bias or family in ("qwen2", "qwen2_moe"))
        shapes |= linear(at + "self_attn.v_proj", kv, width, attention_bias or family in ("qwen2", "qwen2_moe"))
        shapes |= linear(at + "self_attn.o_proj", width, q, attention_bias)
        if family in EXPERT_FAMILIES and has_experts(config, number):
            shapes |= expert_shapes(config, number)
        else:
            shapes |= linear(at + "mlp.gate_proj", config[mlp], width, mlp_bias)
            shapes |= linear(at + "mlp.up_proj", config[mlp], width, mlp_bias)
            shapes |= linear(at + "mlp.down_proj", width, config[mlp], mlp_bias)
        if family == "olmoe":
            shapes |= {at + "self_attn.q_norm.weight": (q,), at + "self_attn.k_norm.weight": (kv,)}
        if family in ("qwen3", "qwen3_moe"):
            shapes |= {at + f"self_attn.{x}_norm.weight": (head_dim,) for x in "qk"}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], width)
    return shapes


def gpt2_shapes(config: Config) -> Shapes:
    """GPT-2 keeps its matrices as [in, out]."""
    width, top = config["n_embd"], "transformer."
    mlp_width = config["n_inner"] or 4 * width
    shapes: Shapes = {
        top + "wte.weight": (config["vocab_size"], width),
        top + "wpe.weight": (config["n_positions"], width),
    }
    for number in range(config["n_layer"]):
        at = f"{top}h.{number}."
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"{at}{norm}.weight": (width,), f"{at}{norm}.bias": (width,)}
        shapes |= linear(at + "attn.c_attn", width, 3 * width, False) | {at + "attn.c_attn.bias": (3 * width,)}
        shapes |= linear(at + "attn.c_proj", width, width, True)
        shapes |= linear(at + "mlp.c_fc", width, mlp_width, False) | {at + "mlp.c_fc.bias": (mlp_width,)}
        shapes |= linear(at + "mlp.c_proj", mlp_width, width, False) | {at + "mlp.c_proj.bias": (width,)}
    shapes |= {top + "ln_f.weight": (width,), top + "ln_f.bias": (width,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], width)
    return shapes


def tensors(model: TinyModel) -> dict[str, Array]:
    """Return all tensors; a tensor depends on the model's seed, its own name and its shape alone."""
    return {name: tensor(model, name, shape) for name, shape in tensor_shapes(model.config).items()}


def tensor(model: TinyModel, name: str, shape: tuple[int, ...]) -> Array:
    if any(part in name for part in model.zeroed):
        return np.zeros(shape, np.float32)
    normal = Stream(model.seed, name).normal(shape)
    if name.endswith(("bias", "sinks")):
        return normal * np.float32(0.3)
    if len(shape) == 1:
        return (0 if model.config["model_type"].startswith("gemma") else 1) + normal * np.float32(0.3)
    is_stored_in_out = model.config["model_type"] == "gpt2" and ".h." in name
    is_stored_in_out = is_stored_in_out or (model.config["model_type"] == "gpt_oss" and len(shape) == 3)
    fan_in = shape[-2] if is_stored_in_out else shape[-1]
    return normal * np.float32(1 / np.sqrt(fan_in))


def digest(model: TinyModel) -> str:
    """Return a hash of config and tensors: tells a changed generator from a wrong result."""
    state = hashlib.blake2b(json.dumps(model.config, sort_keys=True).encode(), digest_size=16)
    for name, array in sorted(tensors(model).items()):
        state.update(name.encode() + array.astype("<f4").tobytes())
    return state.hexdigest()


def write_directory(model: TinyModel, path: Path) -> Path:
    """Write the model as a Hugging Face directory (config.json, model.safetensors) and return ``path``."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(dict(model.config), indent=1), encoding="utf-8")
    save_file(tensors(model), path / "model.safetensors", metadata={"format": "pt"})
    return path
