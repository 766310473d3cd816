"""Tiny models with experts: a config for each family and number, the same without one feature, and GGUF names.

Their matrices are as ``tiny.tensors`` makes any. Head dims and shares are few, because each takes seconds to compile.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tiny.models import CONTEXT, Config, TinyModel
from tiny.stream import Stream

EXPERT_FAMILIES = ("mixtral", "qwen3_moe", "qwen2_moe", "gpt_oss", "olmoe", "granitemoe")
NUM_EXPERT_MODELS = 4  # of each family
NUM_EXPERTS = (4, 3, 8, 17, 5, 2)
CHOSEN = (2, 1, 3, 4, 5, 1)
Shapes = dict[str, tuple[int, ...]]


def expert_model(family: str, number: int) -> TinyModel:
    """Return model ``number`` of ``family``; the first ones have three query heads to a KV head of 16."""
    seed = 50_000 + 1000 * EXPERT_FAMILIES.index(family) + number
    draw = Stream(seed, "config")
    num_kv_heads = draw.choice((1, 2))
    share, head_dim = (3, 16) if number < NUM_EXPERT_MODELS else draw.choice(((1, 32), (5, 16), (2, 64)))
    own = family in ("qwen3_moe", "gpt_oss") or (family == "mixtral" and number % 2)
    width = draw.choice((40, 64, 72, 96)) if own else num_kv_heads * share * head_dim
    config: dict[str, Any] = {
        "model_type": family,
        "vocab_size": draw.choice((67, 97, 100)),
        "tie_word_embeddings": number % 2 == 0,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "hidden_size": width,
        "num_attention_heads": num_kv_heads * share,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "num_hidden_layers": 3,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": draw.choice((1e-6, 1e-5, 1e-3)),
        "hidden_act": "silu",
        "rope_theta": draw.choice((10_000.0, 500_000.0)),
        "num_experts_per_tok": CHOSEN[number % len(CHOSEN)],
    }
    num_experts, inner = NUM_EXPERTS[number % len(NUM_EXPERTS)], draw.choice((24, 40, 64, 100))
    if family == "mixtral":
        window = 33 if number % 4 == 3 else None
        config |= {"num_local_experts": num_experts, "intermediate_size": inner, "sliding_window": window}
    if family in ("qwen3_moe", "qwen2_moe"):
        config |= {
            "num_experts": num_experts,
            "moe_intermediate_size": inner,
            "intermediate_size": draw.choice((48, 100)),
            "norm_topk_prob": number % 2 == 1,
            "decoder_sparse_step": 2 if number % 4 == 2 else 1,
            "mlp_only_layers": [0] if number % 4 == 3 else [],
        }
    if family == "qwen3_moe":
        config["attention_bias"] = number % 3 == 2
    if family == "qwen2_moe":
        config["shared_expert_intermediate_size"] = draw.choice((40, 72))
    if family == "olmoe":
        config |= {"num_experts": num_experts, "intermediate_size": inner, "norm_topk_prob": number % 2 == 1}
    if family == "granitemoe":
        config |= {"num_local_experts": num_experts, "intermediate_size": inner, "embedding_multiplier": 3.0}
        config |= {"residual_multiplier": 0.4, "attention_multiplier": 0.3, "logits_scaling": 2.0}
    if family == "gpt_oss":
        config |= {"num_local_experts": num_experts, "intermediate_size": inner, "attention_bias": number % 4 != 3}
        config |= {"sliding_window": draw.choice((5, 17, 100)), "rope_parameters": {"rope_type": "default"}}
        config["rope_parameters"]["rope_theta"] = config.pop("rope_theta")
        if number % 2 and number >= NUM_EXPERT_MODELS:
            config["rope_parameters"] |= {"rope_type": "yarn", "factor": 8.0, "truncate": False, "beta_fast": 32.0}
            config["rope_parameters"] |= {"beta_slow": 1.0, "original_max_position_embeddings": 64}
    return TinyModel(f"{family}-{number}", config, seed)


def expert_models() -> list[TinyModel]:
    return [expert_model(family, number) for family in EXPERT_FAMILIES for number in range(NUM_EXPERT_MODELS)]


def has_experts(config: Config, number: int) -> bool:
    """Whether layer ``number`` has experts."""
    step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers", [])
    return number not in dense and (number + 1) % step == 0


def expert_shapes(config: Config, number: int) -> Shapes:
    """Return the tensors of a layer's experts under Hugging Face's names."""
    width, inner = config["hidden_size"], config.get("moe_intermediate_size", config["intermediate_size"])
    if config["model_type"] == "gpt_oss":
        return gpt_oss_shapes(f"model.layers.{number}.", config)
    if config["model_type"] == "granitemoe":
        at, num_experts = f"model.layers.{number}.block_sparse_moe.", config["num_local_experts"]
        stacked = {at + "input_linear.weight": (num_experts, 2 * inner, width)}
        stacked[at + "output_linear.weight"] = (num_experts, width, inner)
        return {at + "router.layer.weight": (num_experts, width)} | stacked
    if config["model_type"] == "mixtral":
        at, num_experts = f"model.layers.{number}.block_sparse_moe.", config["num_local_experts"]
        gate, up, down = "w1", "w3", "w2"
    else:
        at, num_experts = f"model.layers.{number}.mlp.", config["num_experts"]
        gate, up, down = "gate_proj", "up_proj", "down_proj"
    shapes: Shapes = {at + "gate.weight": (num_experts, width)}
    if "shared_expert_intermediate_size" in config:
        shared = config["shared_expert_intermediate_size"]
        shapes |= {at + f"shared_expert.{name}.weight": (shared, width) for name in (gate, up)}
        shapes |= {at + "shared_expert.down_proj.weight": (width, shared), at + "shared_expert_gate.weight": (1, width)}
    for expert in range(num_experts):
        shapes |= {f"{at}experts.{expert}.{name}.weight": (inner, width) for name in (gate, up)}
        shapes[f"{at}experts.{expert}.{down}.weight"] = (width, inner)
    return shapes


def gpt_oss_shapes(at: str, config: Config) -> Shapes:
    """Experts in one tensor, as (inputs, outputs), gate and up in turn; and what attention has besides."""
    width, inner, number = config["hidden_size"], config["intermediate_size"], config["num_local_experts"]
    return {
        at + "self_attn.sinks": (config["num_attention_heads"],),
        at + "mlp.router.weight": (number, width),
        at + "mlp.router.bias": (number,),
        at + "mlp.experts.gate_up_proj": (number, width, 2 * inner),
        at + "mlp.experts.gate_up_proj_bias": (number, 2 * inner),
        at + "mlp.experts.down_proj": (number, inner, width),
        at + "mlp.experts.down_proj_bias": (number, width),
    }


def expert_mutations(model: TinyModel) -> dict[str, TinyModel]:
    """Return the model without each feature of its experts, by the feature's name; all other tensors are the same."""
    config, found = model.config, {}

    def without(feature: str, zeroed: tuple[str, ...] = (), **changes: Any) -> None:
        found[feature] = replace(
            model, name=f"{model.name} without {feature}", config={**config, **changes}, zeroed=zeroed
        )

    if config["num_experts_per_tok"] > 1:
        without("an expert", num_experts_per_tok=config["num_experts_per_tok"] - 1)
    if "norm_topk_prob" in config and config["num_experts_per_tok"] < config["num_experts"]:
        without("the norm of gains", norm_topk_prob=not config["norm_topk_prob"])
    if config["model_type"] in ("qwen3_moe", "olmoe"):
        without("qk norms", zeroed=("q_norm", "k_norm"))
    if config["model_type"] == "qwen2_moe":
        without("the shared expert", zeroed=("shared_expert.down_proj",))
        without("the shared expert's gate", zeroed=("shared_expert_gate",))
    if config["model_type"] == "gpt_oss":
        without("sinks", zeroed=("sinks",))
        without("the router's bias", zeroed=("router.bias",))
        without("experts' biases", zeroed=("_proj_bias",))
        without("windows", layer_types=["full_attention"] * config["num_hidden_layers"])
    return found


# ---- GGUF ------------------------------------------------------------------------------------------------------

ARCHITECTURES = {
    "mixtral": "llama",
    "qwen3_moe": "qwen3moe",
    "qwen2_moe": "qwen2moe",
    "gpt_oss": "gpt-oss",
    "olmoe": "olmoe",
    "granitemoe": "granitemoe",
}


def as_converted(config: Config, found: dict[str, Any]) -> dict[str, Any]:
    """Return gpt-oss's and granite's tensors as llama.cpp's converter names, turns and divides them; others as is."""
    if config["model_type"] == "granitemoe":
        return with_gates_apart(found)
    if config["model_type"] != "gpt_oss":
        return found
    converted = {}
    for name, array in found.items():
        if name.endswith("sinks"):
            converted[name + ".weight"] = array
        elif "down_proj" in name:
            is_bias = name.endswith("_bias")
            stem = name.removesuffix("_bias")
            converted[stem + (".bias" if is_bias else ".weight")] = array if is_bias else array.swapaxes(1, 2)
        elif "gate_up_proj" in name:
            ending = ".bias" if name.endswith("_bias") else ".weight"
            turned = array if ending == ".bias" else array.swapaxes(1, 2)
            at = name[: name.index("gate_up_proj")]
            converted |= {at + "gate_proj" + ending: turned[:, ::2], at + "up_proj" + ending: turned[:, 1::2]}
        else:
            converted[name] = array
    return converted


def with_gates_apart(found: dict[str, Any]) -> dict[str, Any]:
    """Granite's gate and up, which it has in one tensor, as two."""
    converted = {}
    for name, array in found.items():
        at, _, after = name.partition("block_sparse_moe.input_linear")
        if after:
            gate, up = np.split(array, 2, axis=1)
            converted |= {at + "mlp.experts.gate_proj" + after: gate, at + "mlp.experts.up_proj" + after: up}
        else:
            converted[name] = array
    return converted


def merged_name(name: str) -> tuple[str, int] | None:
    """Return the name under which llama.cpp's converter stacks an expert's tensor, and which of them it is."""
    parts = name.split(".")
    if "experts" not in parts or not parts[parts.index("experts") + 1].isdigit():
        return None
    at = parts.index("experts") + 1
    middle = f"layers.{parts[2]}.feed_forward" if parts[3] == "block_sparse_moe" else ".".join(parts[: at - 1])
    return ".".join((middle, "experts", *parts[at + 1 :])), int(parts[at])


def add_expert_metadata(writer: Any, config: Config) -> None:
    """Write what a GGUF header says of experts."""
    writer.add_expert_count(config.get("num_experts", config.get("num_local_experts")))
    writer.add_expert_used_count(config["num_experts_per_tok"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if config["model_type"] == "gpt_oss":
        writer.add_expert_feed_forward_length(config["intermediate_size"])
        writer.add_sliding_window(config["sliding_window"])
    if config["model_type"] == "granitemoe":
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
