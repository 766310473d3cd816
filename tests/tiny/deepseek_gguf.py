"""A tiny model with latent attention as a GGUF file, by the gguf package's names, as llama.cpp's converter lays it out.

Today's converter splits what expands latents in two, a stack of matrices each, and turns the half for keys; it states
the widths of stored keys. That of 2024 left it whole and stated widths as they are computed with (``is_whole``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize

from tiny.models import Config, TinyModel
from tiny.tensors import tensors

Array = np.ndarray[Any, Any]


def write_deepseek_gguf(model: TinyModel, path: Path, weight_type: str = "f32", *, is_whole: bool = False) -> Path:
    config = model.config
    writer = gguf.GGUFWriter(path, "deepseek2")
    _write_metadata(writer, config, is_whole=is_whole)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.DEEPSEEK2, config["num_hidden_layers"])
    for name, array in _with_stacks(tensors(model)).items():
        for part, numbers in _parts(config, name, array, is_whole=is_whole).items():
            wanted = weight_type if array.ndim > 1 and numbers.shape[-1] % 32 == 0 else "f32"
            kind = gguf.GGMLQuantizationType[wanted.upper()]
            written = names.get_name(part, try_suffixes=(".weight", ".bias"))
            writer.add_tensor(written, quantize(numbers, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _with_stacks(found: dict[str, Array]) -> dict[str, Array]:
    """The experts' matrices of a kind as one tensor, and a name whose ending the map knows."""
    stacks: dict[str, list[Array]] = {}
    others = {}
    for name, array in found.items():
        before, _, after = name.partition(".experts.")
        if after:
            stacks.setdefault(f"{before}.experts.{after.split('.', 1)[1]}", []).append(array)
        else:
            others[name.replace("e_score_correction_bias", "e_score_correction.bias")] = array
    return others | {name: np.stack(arrays) for name, arrays in stacks.items()}


def _parts(config: Config, name: str, array: Array, *, is_whole: bool) -> dict[str, Array]:
    if "kv_b_proj" not in name or is_whole:
        return {name: array}
    own, rank = config["qk_nope_head_dim"], config["kv_lora_rank"]
    heads = array.reshape(config["num_attention_heads"], -1, rank)
    keys = np.ascontiguousarray(heads[:, :own].swapaxes(1, 2))
    return {
        name.replace("kv_b_proj", "k_b_proj"): keys,
        name.replace("kv_b_proj", "v_b_proj"): np.ascontiguousarray(heads[:, own:]),
    }


def _write_metadata(writer: gguf.GGUFWriter, config: Config, *, is_whole: bool) -> None:
    own, turned, rank = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["kv_lora_rank"]
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(turned)
    writer.add_kv_lora_rank(rank)
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    if config["q_lora_rank"] is not None:
        writer.add_q_lora_rank(config["q_lora_rank"])
    if "n_routed_experts" in config:
        _write_experts(writer, config)
    scaling = config.get("rope_scaling")
    if scaling:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_log_mul(0.1 * scaling["mscale_all_dim"])
        writer.add_rope_scaling_yarn_beta_fast(scaling["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(scaling["beta_slow"])
    if is_whole:
        writer.add_head_count_kv(config["num_attention_heads"])
        writer.add_key_length(own + turned)
        writer.add_value_length(config["v_head_dim"])
    else:
        writer.add_head_count_kv(1)
        writer.add_key_length(rank + turned)
        writer.add_value_length(rank)
        writer.add_key_length_mla(own + turned)
        writer.add_value_length_mla(config["v_head_dim"])


def _write_experts(writer: gguf.GGUFWriter, config: Config) -> None:
    is_third = config["model_type"] == "deepseek_v3"
    kind = gguf.ExpertGatingFuncType.SIGMOID if is_third else gguf.ExpertGatingFuncType.SOFTMAX
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_expert_gating_func(kind)
    if is_third or config["topk_method"] != "greedy":
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])
