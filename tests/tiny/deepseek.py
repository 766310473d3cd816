"""Tiny models with latent attention: deepseek_v2 and deepseek_v3, and what each has that can be switched off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tiny.models import CONTEXT, TinyModel
from tiny.stream import Stream

FAMILIES = ("deepseek_v2", "deepseek_v3")
NUM_RECORDED = 3  # of each family
YARN = {
    "type": "yarn",
    "factor": 10.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 8,
    "beta_slow": 1,
    "mscale": 1.0,
}
RANKS = ((32, 16), (64, 32), (32, 32))
"""Widths of the latent and of the rotated part."""


def deepseek_model(family: str, number: int) -> TinyModel:
    """Return model ``number``: with a low rank of queries by turns, biases in one of three."""
    seed = 20_000 + 1000 * FAMILIES.index(family) + number
    draw = Stream(seed, "config")
    rank, turned = RANKS[number % len(RANKS)]
    heads = draw.choice((2, 3, 5))
    config: dict[str, Any] = {
        "model_type": family,
        "architectures": [f"Deepseek{family[-2:].upper()}ForCausalLM"],
        "vocab_size": draw.choice((97, 128)),
        "hidden_size": heads * draw.choice((16, 20)),
        "intermediate_size": draw.choice((64, 100)),
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": draw.choice((1e-6, 1e-3)),
        "rope_theta": draw.choice((10_000.0, 1_000.0)),
        "hidden_act": "silu",
        "kv_lora_rank": rank,
        "q_lora_rank": None if number % 2 else draw.choice((24, 32)),
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": draw.choice((16, 24, 40)),
        "v_head_dim": draw.choice((16, 32)),
        "attention_bias": number % 3 == 1,
        "tie_word_embeddings": number % 2 == 0,
        "first_k_dense_replace": 2,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    if family == "deepseek_v3":
        config["rope_interleave"] = number % 3 != 2
    if number % 3 == 2:
        config |= experts(family, number)
    if number % 2:
        share = (0.8, 1.0)[number // 2 % 2]
        config["rope_scaling"] = {**YARN, "mscale_all_dim": share}
    return TinyModel(f"{family}-{number}", config, seed)


def experts(family: str, number: int) -> dict[str, Any]:
    """Experts from the second layer on, in groups of which some count."""
    found: dict[str, Any] = {
        "first_k_dense_replace": 1,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "n_shared_experts": 2,
        "moe_intermediate_size": 24,
        "routed_scaling_factor": 1.5,
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": family == "deepseek_v3",
    }
    return found | ({"topk_method": "group_limited_greedy" if number % 2 else "greedy"} if family[-1] == "2" else {})


def deepseek_mutations(model: TinyModel) -> dict[str, TinyModel]:
    """The model without each feature that it has; all other tensors are the same."""
    config, found = model.config, {}

    def without(feature: str, zeroed: tuple[str, ...] = (), **changes: Any) -> None:
        name = f"{model.name} without {feature}"
        found[feature] = replace(model, name=name, config={**config, **changes}, zeroed=zeroed)

    without("latent's norm", ("kv_a_layernorm",))
    without("interleaving", model_type="deepseek_v3", rope_interleave=model.family == "deepseek_v3" and not
            config["rope_interleave"])  # fmt: skip
    without("base of the rotation", rope_theta=77.0)
    without("values", ("kv_b_proj",))
    if config["attention_bias"]:
        without("biases", ("_proj.bias", "_mqa.bias"))
    if config["q_lora_rank"] is not None:
        without("norm of queries", ("q_a_layernorm",))
    if "n_routed_experts" in config:
        without("shared experts", ("shared_experts.down_proj",))
        without("an expert", num_experts_per_tok=2)
        without("the scale of gains", routed_scaling_factor=1.0)
        if model.family == "deepseek_v3":
            without("the norm of gains", norm_topk_prob=False)
            without("the bias of choices", ("e_score_correction_bias",))
    scaling = config.get("rope_scaling")
    if scaling:
        without("scale of scores", rope_scaling={**scaling, "mscale_all_dim": 0})
    return found
