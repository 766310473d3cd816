"""Tiny models of the families that the lesson doesn't have: a config for each, and the same with a feature put out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tiny.models import CONTEXT, Config, TinyModel
from tiny.stream import Stream

DENSE = (
    *("gemma", "gemma2", "gemma3_text", "phi3", "phi", "gpt_neox", "falcon", "starcoder2", "stablelm"),
    *("olmo", "olmo2", "granite", "smollm3"),
)
NUM_MODELS = 6  # of each family
DIMS = (16, 32, 16, 16, 32, 64)  # few, and few shares: each kind of attention takes seconds to compile
HEADS = ((3, 1), (4, 2), (2, 2), (6, 2), (4, 4), (2, 1))  # query and KV heads
WINDOWS = (5, 33, 17, 100, 16, 64)
ORIGINAL = 64
"""The context that a scaled rotation is scaled from."""

ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    "yarn with all": {
        "rope_type": "yarn",
        "factor": 10.0,
        "original_max_position_embeddings": ORIGINAL,
        "beta_fast": 8.0,
        "beta_slow": 0.5,
        "mscale": 0.7,
        "mscale_all_dim": 0.4,
        "truncate": False,
    },
    "yarn with a factor": {
        "rope_type": "yarn",
        "factor": 2.0,
        "attention_factor": 1.3,
        "original_max_position_embeddings": ORIGINAL,
    },
}


def dense_model(family: str, number: int) -> TinyModel:
    """Return model ``number`` of ``family``; six in a row go through all shapes."""
    seed = 100_000 + 1000 * DENSE.index(family) + number
    draw = Stream(seed, "config")
    dim, (heads, kv_heads) = DIMS[number % 6], HEADS[number % 6]
    config: dict[str, Any] = {
        "model_type": family,
        "vocab_size": draw.choice((97, 128, 200, 257)),
        "hidden_size": heads * dim,
        "num_attention_heads": heads,
        "num_hidden_layers": draw.choice((2, 3)),
        "intermediate_size": draw.choice((64, 100, 160)),
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": number % 2 == 0,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": None,
    }
    fields = FIELDS[family](draw, number, dim, kv_heads)
    return TinyModel(f"{family}-{number}", config | fields, seed)


def _rotation(draw: Stream, number: int, kinds: tuple[str, ...] = tuple(ROPES)) -> dict[str, Any]:
    """Rope keys as transformers 5 writes them; every second model has a scaling."""
    theta = draw.choice((10_000.0, 500_000.0))
    scaling = ROPES[kinds[number // 2 % len(kinds)]] if number % 2 else {"rope_type": "default"}
    return {"rope_parameters": {"rope_theta": theta, **scaling}}


def _kv(kv_heads: int) -> dict[str, Any]:
    return {"num_key_value_heads": kv_heads}


def _gemma(draw: Stream, number: int, dim: int, kv_heads: int) -> dict[str, Any]:
    found = _kv(kv_heads) | {"head_dim": dim, "hidden_act": draw.choice(("gelu", "gelu_pytorch_tanh"))}
    return found | _rotation(draw, number) | {"attention_bias": number % 3 == 1, "rms_norm_eps": 1e-5}


def _gemma2(draw: Stream, number: int, dim: int, kv_heads: int) -> dict[str, Any]:
    return {
        **_gemma(draw, number, dim, kv_heads),
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": draw.choice((4, 24)),
        "sliding_window": WINDOWS[number % 6],
        "attn_logit_softcapping": (2.0, 0.7, None)[number % 3],
        "final_logit_softcapping": (1.0, None, 3.0)[number % 3],
    }


def _gemma3(draw: Stream, number: int, dim: int, kv_heads: int) -> dict[str, Any]:
    found = _gemma2(draw, number, dim, kv_heads) | {"attn_logit_softcapping": None, "sliding_window_pattern": 2}
    full = found.pop("rope_parameters")
    local = {"rope_type": "default", "rope_theta": 300.0}
    if number % 2:
        return found | {"rope_parameters": {"full_attention": full, "sliding_attention": local}}
    return found | {"rope_theta": full["rope_theta"], "rope_local_base_freq": 300.0}


def _phi3(draw: Stream, number: int, dim: int, kv_heads: int) -> dict[str, Any]:
    part = (1.0, 0.5, 0.75)[number % 3]
    pairs = int(dim * part) // 2
    found = _kv(kv_heads) | {"rms_norm_eps": 1e-5, "sliding_window": None if number % 2 else WINDOWS[number % 6]}
    scaling: dict[str, Any] = {"rope_type": "default"}
    if number % 4 != 2:
        scaling = {
            "rope_type": "longrope",
            "long_factor": [1.0 + 0.7 * i for i in range(pairs)],
            "short_factor": [1.0 + 0.1 * i for i in range(pairs)],
        }
        found["original_max_position_embeddings"] = ORIGINAL
    return found | {"rope_parameters": {"rope_theta": 10_000.0, "partial_rotary_factor": part, **scaling}}


def _phi(draw: Stream, number: int, dim: int, kv_heads: int) -> dict[str, Any]:
    found = _kv(kv_heads) | _rotation(draw, number) | {"hidden_act": draw.choice(("gelu_new", "gelu"))}
    found["rope_parameters"]["partial_rotary_factor"] = (0.5, 0.25)[number % 2]
    return found | {"layer_norm_eps": 1e-5, "tie_word_embeddings": False}


def _gpt_neox(draw: Stream, number: int, dim: int, kv_heads: int) -> dict[str, Any]:
    found: dict[str, Any] = {"hidden_act": "gelu", "use_parallel_residual": number % 3 != 2}
    found |= {"attention_bias": number % 4 != 3, "layer_norm_eps": 1e-5, "tie_word_embeddings": False}
    if number % 2:
        found |= _rotation(draw, number)
        found["rope_parameters"]["partial_rotary_factor"] = 0.5
        return found
    return found | {"rotary_emb_base": 5_000, "rotary_pct": (1.0, 0.25, 0.5)[number // 2 % 3]}


def _falcon(draw: Stream, number: int, dim: int, kv_heads: int) -> dict[str, Any]:
    found = {"bias": number % 3 == 1, "activation": "gelu", "layer_norm_epsilon": 1e-5} | _rotation(draw, number)
    kind = number % 6
    if kind in (1, 3):  # 40b, and 11b with one norm
        return found | {
            "new_decoder_architecture": True,
            "num_kv_heads": kv_heads,
            "num_ln_in_parallel_attn": 2 if kind == 1 else 1,
            "ffn_hidden_size": 100,
            "intermediate_size": 100,
        }
    found |= {"multi_query": kind != 2, "parallel_attn": kind != 4, "num_ln_in_parallel_attn": None}
    return found | {"intermediate_size": 4 * found.get("hidden_size", HEADS[kind][0] * dim)}


def _starcoder2(draw: Stream, number: int, dim: int, kv_heads: int) -> dict[str, Any]:
    found = _kv(kv_heads) | {"use_bias": number % 3 != 2, "norm_epsilon": 1e-5, "hidden_act": "gelu_pytorch_tanh"}
    return found | _rotation(draw, number) | {"sliding_window": WINDOWS[number % 6] if number % 2 else None}


def _stablelm(draw: Stream, number: int, dim: int, kv_heads: int) -> dict[str, Any]:
    found = _kv(kv_heads) | {"use_qkv_bias": number % 2 == 1, "qk_layernorm": number % 3 != 0, "layer_norm_eps": 1e-5}
    found |= _rotation(draw, number) | {"use_parallel_residual": number % 4 >= 2}
    found["rope_parameters"]["partial_rotary_factor"] = (0.25, 0.5)[number % 2]
    return found


def _olmo(draw: Stream, number: int, dim: int, kv_heads: int) -> dict[str, Any]:
    return _kv(kv_heads) | _rotation(draw, number) | {"attention_bias": number % 3 == 1}


def _olmo2(draw: Stream, number: int, dim: int, kv_heads: int) -> dict[str, Any]:
    return _olmo(draw, number, dim, kv_heads) | {"rms_norm_eps": 1e-5}


def _granite(draw: Stream, number: int, dim: int, kv_heads: int) -> dict[str, Any]:
    found = _olmo2(draw, number, dim, kv_heads) | {"mlp_bias": number % 3 == 2, "embedding_multiplier": 12.0}
    return found | {"residual_multiplier": 0.22, "attention_multiplier": 0.4, "logits_scaling": 8.0}


def _smollm3(draw: Stream, number: int, dim: int, kv_heads: int) -> dict[str, Any]:
    found = _olmo2(draw, number, dim, kv_heads) | {"no_rope_layer_interval": 2}
    if number % 3 == 1:
        found |= {"use_sliding_window": True, "sliding_window": WINDOWS[number % 6]}
    return found


FIELDS = {
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "phi3": _phi3,
    "phi": _phi,
    "gpt_neox": _gpt_neox,
    "falcon": _falcon,
    "starcoder2": _starcoder2,
    "stablelm": _stablelm,
    "olmo": _olmo,
    "olmo2": _olmo2,
    "granite": _granite,
    "smollm3": _smollm3,
}


def dense_mutations(model: TinyModel) -> dict[str, TinyModel]:
    """Return the model without each feature that a config key switches, by the feature's name."""
    found = {}
    for feature, changes in _changes(model.config).items():
        changed = {**model.config, **changes}
        found[feature] = replace(model, name=f"{model.name} without {feature}", config=changed)
    if any(model.config.get(name) for name in ("use_bias", "attention_bias", "bias", "use_qkv_bias")):
        zeroed = ("_proj.bias", "query_key_value.bias", "dense.bias")
        found["biases"] = replace(model, name=f"{model.name} without biases", zeroed=zeroed)
    return found


NUMBERS = {
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
    "logits_scaling": 1.0,
    "sliding_window": CONTEXT,
    "query_pre_attn_scalar": 9,
    "rope_local_base_freq": 20_000.0,
}
"""What takes the effect out of a number in a config, or changes it."""


def _changes(config: Config) -> dict[str, dict[str, Any]]:
    changes: dict[str, dict[str, Any]] = {
        key: {key: number} for key, number in NUMBERS.items() if config.get(key) is not None
    }
    family, rope = config["model_type"], config.get("rope_parameters", {})
    if family == "smollm3":
        changes["layers without rope"] = {"no_rope_layers": [1] * config["num_hidden_layers"]}
    if family == "gpt_neox":
        changes["parallel blocks"] = {"use_parallel_residual": not config["use_parallel_residual"]}
    if family in ("falcon", "gpt_neox"):
        changes["exact gelu"] = {"activation": "silu", "hidden_act": "silu"}
    if rope.get("partial_rotary_factor", 1.0) != 1 and "long_factor" not in rope:
        changes["partial rotation"] = {"rope_parameters": rope | {"partial_rotary_factor": 1.0}}
    if rope.get("rope_type", "default") not in ("default", "dynamic"):
        plain = {key: rope[key] for key in ("rope_theta", "partial_rotary_factor") if key in rope}
        changes["rope scaling"] = {"rope_parameters": plain | {"rope_type": "default"}}
    return changes
