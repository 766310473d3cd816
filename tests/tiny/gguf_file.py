"""A tiny model as a GGUF file, written with the gguf package as llama.cpp's converter lays models out.

Names come from that package's own map. What the converter does to numbers: llama's (and mistral's) q and k rows go
from halves to pairs, GPT-2's matrices are turned to [out, in], and Llama 3's rope scaling becomes a tensor of divisors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize

from tiny.blocks import quantised
from tiny.experts import ARCHITECTURES, EXPERT_FAMILIES, add_expert_metadata, as_converted, merged_name
from tiny.models import Config, TinyModel
from tiny.tensors import tensors

Array = np.ndarray[Any, Any]

_ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gpt2": "gpt2",
} | ARCHITECTURES


def write_gguf(model: TinyModel, path: Path, weight_type: str = "f32") -> dict[str, Array]:
    """Write the model with its matrices as ``weight_type`` (f16 where rows are no whole groups of 32).

    Returns the tensors, under their Hugging Face names and in Hugging Face's order, as a reader of the file finds them.
    """
    architecture = _ARCHITECTURES[model.family]
    writer = gguf.GGUFWriter(path, architecture)
    write_metadata(writer, model.config)
    num_layers = model.config.get("num_hidden_layers", model.config.get("n_layer"))
    kind_of_model = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind_of_model, num_layers)
    found, stacks = {}, Stacks(model.config)
    for name, array in as_converted(model.config, tensors(model)).items():
        turned = as_gguf(model, name, array)
        kind = gguf.GGMLQuantizationType[kind_of(name, turned, weight_type).upper()]
        raw = quantised(turned, kind.name.lower())
        whole = stacks.add(name, raw)
        if whole is not None:
            stem, stacked = whole
            writer.add_tensor(names.get_name(stem, try_suffixes=(".weight", ".bias")), stacked, raw_dtype=kind)
        found[name] = as_huggingface(model, name, dequantize(raw, kind).astype(np.float32))
    assert not stacks.waiting, sorted(stacks.waiting)
    factors = rope_factors(model.config)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return found


class Stacks:
    """Experts' tensors that wait for the next ones of their kind; other tensors don't."""

    def __init__(self, config: Config) -> None:
        self.number = config.get("num_experts", config.get("num_local_experts"))
        self.waiting: dict[str, list[Array]] = {}

    def add(self, name: str, raw: Array) -> tuple[str, Array] | None:
        """The name and the tensor to write, if one is complete."""
        merged = merged_name(name)
        if merged is None:
            return name, raw
        stem, expert = merged
        found = self.waiting.setdefault(stem, [])
        assert len(found) == expert, (name, len(found))
        found.append(raw)
        return (stem, np.stack(self.waiting.pop(stem))) if len(found) == self.number else None


def kind_of(name: str, array: Array, weight_type: str) -> str:
    if array.ndim == 1 or "wpe" in name or name.endswith(".bias"):
        return "f32"
    if weight_type.startswith("q") and array.shape[-1] % 32:
        return "f16"
    return "q8_0" if weight_type.endswith("_k") and array.shape[-1] % 256 else weight_type


def as_gguf(model: TinyModel, name: str, array: Array) -> Array:
    if heads := num_paired_heads(model, name):
        return halves_to_pairs(array, heads)
    return np.ascontiguousarray(array.T) if is_stored_in_out(model, name, array) else array


def as_huggingface(model: TinyModel, name: str, array: Array) -> Array:
    if heads := num_paired_heads(model, name):
        return pairs_to_halves(array, heads)
    return array.T if is_stored_in_out(model, name, array) else array


def num_paired_heads(model: TinyModel, name: str) -> int:
    """Return the heads of a tensor whose rows are turned to pairs; 0 for others."""
    if _ARCHITECTURES[model.family] not in ("llama", "granitemoe") or not ("q_proj." in name or "k_proj." in name):
        return 0
    return int(model.config["num_attention_heads" if "q_proj." in name else "num_key_value_heads"])


def is_stored_in_out(model: TinyModel, name: str, array: Array) -> bool:
    return model.family == "gpt2" and ".h." in name and array.ndim == 2


def halves_to_pairs(array: Array, num_heads: int) -> Array:
    """Row i of a head's first half and row i of its second become neighbours, as llama.cpp turns them."""
    return array.reshape(num_heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def pairs_to_halves(array: Array, num_heads: int) -> Array:
    return array.reshape(num_heads, -1, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def rope_factors(config: Config) -> Array | None:
    """Return what Llama 3's scaling divides each frequency by, float32 [D/2]; None without it."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if scaling.get("rope_type") != "llama3":
        return None
    low, high, factor = (scaling[key] for key in ("low_freq_factor", "high_freq_factor", "factor"))
    dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    waves = 2 * np.pi * theta ** (np.arange(0, dim, 2) / dim)
    smooth = np.clip((scaling["original_max_position_embeddings"] / waves - low) / (high - low), 0, 1)
    return np.asarray(1 / ((1 - smooth) / factor + smooth), np.float32)


def write_metadata(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_vocab_size(config["vocab_size"])
    if config["model_type"] == "gpt2":
        writer.add_context_length(config["n_positions"])
        writer.add_embedding_length(config["n_embd"])
        writer.add_block_count(config["n_layer"])
        writer.add_feed_forward_length(config["n_inner"] or 4 * config["n_embd"])
        writer.add_head_count(config["n_head"])
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
        return
    dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_rope_dimension_count(dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    if config["model_type"] in ("mistral", "mixtral") and config["sliding_window"]:
        writer.add_sliding_window(config["sliding_window"])
    if config["model_type"] in EXPERT_FAMILIES:
        add_expert_metadata(writer, config)
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if scaling.get("rope_type", scaling.get("type")) == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling["factor"])
