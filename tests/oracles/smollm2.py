"""SmolLM2-135M from its GGUF as a Hugging Face directory in float32: the same weights for kvist and the oracle.

Read with the gguf package alone: its reader, its dequantiser, its names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize
from safetensors.numpy import save_file
from tiny.gguf_file import pairs_to_halves

Array = np.ndarray[Any, Any]


def write_huggingface(gguf_path: Path, path: Path) -> Path:
    reader = gguf.GGUFReader(gguf_path)
    config = config_of(reader)
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(dict(tensors_of(reader, config)), path / "model.safetensors", metadata={"format": "pt"})
    return path


def config_of(reader: gguf.GGUFReader) -> dict[str, Any]:
    def value(key: str) -> Any:
        return reader.get_field(f"llama.{key}").contents()

    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": next(int(t.shape[1]) for t in reader.tensors if t.name == "token_embd.weight"),
        "hidden_size": value("embedding_length"),
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": value("attention.head_count"),
        "num_key_value_heads": value("attention.head_count_kv"),
        "max_position_embeddings": value("context_length"),
        "rms_norm_eps": value("attention.layer_norm_rms_epsilon"),
        "rope_theta": value("rope.freq_base"),
        "tie_word_embeddings": not any(t.name == "output.weight" for t in reader.tensors),
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def tensors_of(reader: gguf.GGUFReader, config: dict[str, Any]) -> Iterator[tuple[str, Array]]:
    names = huggingface_names(config["num_hidden_layers"])
    for tensor in reader.tensors:
        array = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        name = names[tensor.name]
        if "q_proj" in name or "k_proj" in name:
            array = pairs_to_halves(array, config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"])
        yield name, np.ascontiguousarray(array)


def huggingface_names(num_layers: int) -> dict[str, str]:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, num_layers)
    parts = ["self_attn." + x for x in ("q_proj", "k_proj", "v_proj", "o_proj")]
    parts += ["mlp." + x for x in ("gate_proj", "up_proj", "down_proj")] + [
        "input_layernorm",
        "post_attention_layernorm",
    ]
    ours = ["model.embed_tokens", "model.norm", "lm_head"]
    ours += [f"model.layers.{number}.{part}" for number in range(num_layers) for part in parts]
    return {f"{names.get_name(name)}.weight": f"{name}.weight" for name in ours}
