"""A tiny model of a dense family as a GGUF file, as llama.cpp's converter writes it; names are the gguf package's own.

What the converter does to numbers: q and k of Granite, OLMo and SmolLM3 go from halves to pairs, Gemma's norms gain
1, GPT-NeoX's and Falcon's q, k and v are taken apart head by head and stacked, StableLM's norms of heads are stacked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tiny.gguf_file import halves_to_pairs
from tiny.models import Config, TinyModel
from tiny.tensors import tensors

Array = np.ndarray[Any, Any]

ARCHITECTURES = {
    "gemma3_text": "GEMMA3",
    "phi": "PHI2",
    "gpt_neox": "GPTNEOX",
}
PAIRED = ("granite", "olmo", "smollm3")


def write_dense_gguf(model: TinyModel, path: Path) -> Path:
    """Write the model with f32 matrices; returns ``path``."""
    config, family = model.config, model.family
    kind = gguf.MODEL_ARCH[ARCHITECTURES.get(family, family.upper())]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[kind])
    write_metadata(writer, config)
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    for name, array in stacked(config, tensors(model)).items():
        as_stored = as_gguf(config, name, array)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), np.ascontiguousarray(as_stored))
    rope = config.get("rope_parameters", {})
    for which in ("long", "short"):
        if f"{which}_factor" in rope:
            writer.add_tensor(f"rope_factors_{which}.weight", np.array(rope[f"{which}_factor"], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def stacked(config: Config, named: dict[str, Array]) -> dict[str, Array]:
    """The tensors with StableLM's norms of heads in one."""
    found: dict[str, Array] = {}
    for name, array in named.items():
        if ".norms." not in name:
            found[name] = array
            continue
        start = name.split(".norms.")[0]
        heads = config["num_attention_heads" if ".q_layernorm" in name else "num_key_value_heads"]
        found[start + ".weight"] = np.stack([named[f"{start}.norms.{head}.weight"] for head in range(heads)])
    return found


def as_gguf(config: Config, name: str, array: Array) -> Array:
    family, heads = config["model_type"], config["num_attention_heads"]
    if family.startswith("gemma") and name.endswith("norm.weight"):
        return array + np.float32(1)
    if family in PAIRED and ("q_proj." in name or "k_proj." in name):
        return halves_to_pairs(array, heads if "q_proj." in name else config["num_key_value_heads"])
    if "query_key_value." in name:
        dim = config["hidden_size"] // heads
        grouped = array.reshape(kv_heads(config), -1, dim, *array.shape[1:])
        parts = (grouped[:, :-2], grouped[:, -2], grouped[:, -1])
        return np.concatenate([part.reshape(-1, *array.shape[1:]) for part in parts])
    return array


def kv_heads(config: Config) -> int:
    if config["model_type"] == "falcon":
        if config.get("new_decoder_architecture"):
            return int(config["num_kv_heads"])
        return 1 if config.get("multi_query", True) else int(config["num_attention_heads"])
    return int(config.get("num_key_value_heads") or config["num_attention_heads"])


def write_metadata(writer: gguf.GGUFWriter, config: Config) -> None:
    width, heads = config["hidden_size"], config["num_attention_heads"]
    dim = config.get("head_dim") or width // heads
    rope = config.get("rope_parameters", {})
    rope = rope.get("full_attention", rope)
    part = rope.get("partial_rotary_factor", config.get("rotary_pct", 1.0))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(width)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config.get("ffn_hidden_size", config["intermediate_size"]))
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads(config))
    writer.add_rope_dimension_count(int(dim * part))
    base = rope.get("rope_theta", config.get("rope_theta", config.get("rotary_emb_base", 10000.0)))
    writer.add_rope_freq_base(float(base))
    if "head_dim" in config:
        writer.add_key_length(dim)
        writer.add_value_length(dim)
    if "rms_norm_eps" in config:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_layer_norm_eps(
        next((config[key] for key in ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon") if key in config), 1e-5)
    )
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    write_scaling(writer, config, rope)
    write_numbers(writer, config)


def write_scaling(writer: gguf.GGUFWriter, config: Config, rope: Config) -> None:
    if rope.get("rope_type") == "longrope":
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
        stretch = config["max_position_embeddings"] / config["original_max_position_embeddings"]
        original = np.log(config["original_max_position_embeddings"])
        writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(stretch) / original)))
    if rope.get("rope_type") in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType[rope["rope_type"].upper()])
        writer.add_rope_scaling_factor(rope["factor"])
    if rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def write_numbers(writer: gguf.GGUFWriter, config: Config) -> None:
    """What only some families have."""
    settings = {
        "attn_logit_softcapping": writer.add_attn_logit_softcapping,
        "final_logit_softcapping": writer.add_final_logit_softcapping,
        "use_parallel_residual": writer.add_parallel_residual,
        "embedding_multiplier": writer.add_embedding_scale,
        "residual_multiplier": writer.add_residual_scale,
        "attention_multiplier": writer.add_attention_scale,
        "logits_scaling": writer.add_logit_scale,
    }
    if config["model_type"] == "gemma3_text":
        writer.add_sliding_window_pattern(config["sliding_window_pattern"])
        writer.add_rope_freq_base_swa(config.get("rope_local_base_freq", 300.0))
    for key, add in settings.items():
        if config.get(key) is not None:
            add(config[key])
