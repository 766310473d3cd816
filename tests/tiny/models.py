"""Which tiny models there are: a config for each family and number, and the same with one feature switched off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tiny.stream import Stream

Config = Mapping[str, Any]

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gpt2")
NUM_MODELS = 8  # of each family
HEAD_DIMS = (16, 32, 64, 80, 96, 128)
HEADS = ((2, 3, 4, 6), (1, 2, 3, 8), (4, 6, 8))  # where there is one KV head, any number, and 2 or more shared ones
WINDOWS = (5, 16, 17, 33, 64, 100, 1)
CONTEXT = 640
ROPE_SCALINGS: tuple[dict[str, Any] | None, ...] = (
    None,
    {"rope_type": "linear", "factor": 4.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
)


@dataclass(frozen=True)
class TinyModel:
    """``config`` has Hugging Face's keys; ``seed`` and a tensor's name give its numbers (see ``tensors``).

    Tensors whose name contains one of ``zeroed`` are zero: how a feature that no config key switches is put out.
    """

    name: str
    config: Config
    seed: int
    zeroed: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        return self.name.split("-")[0]

    def prompt(self, num_tokens: int, tag: str = "prompt") -> list[int]:
        return Stream(self.seed, tag).integers(num_tokens, self.config["vocab_size"])


def tiny_model(family: str, number: int) -> TinyModel:
    """Return model ``number`` of ``family``; six in a row go through all head dims, three through MQA, MHA and GQA."""
    seed = 1000 * FAMILIES.index(family) + number
    draw = Stream(seed, "config")
    head_dim = HEAD_DIMS[number % len(HEAD_DIMS)]
    num_heads = draw.choice([n for n in HEADS[number % 3] if n * head_dim <= 512])
    divisors = [n for n in range(1, num_heads + 1) if num_heads % n == 0]
    num_kv_heads = draw.choice([divisors[:1], divisors, divisors[1:-1]][number % 3])
    config: dict[str, Any] = {
        "model_type": family,
        "vocab_size": draw.choice((97, 128, 200, 257)),
        "tie_word_embeddings": number % 2 == 0,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    if family == "gpt2":
        config |= gpt2_fields(draw, head_dim, num_heads)
    else:
        config |= llama_fields(draw, number, head_dim, num_heads, num_kv_heads)
        config |= family_fields(family, draw, number, num_heads, config["num_hidden_layers"])
    return TinyModel(f"{family}-{number}", config, seed)


def tiny_models() -> list[TinyModel]:
    return [tiny_model(family, number) for family in FAMILIES for number in range(NUM_MODELS)]


def gpt2_fields(draw: Stream, head_dim: int, num_heads: int) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": num_heads * head_dim,
        "n_head": num_heads,
        "n_layer": draw.choice((2, 3)),
        "n_inner": draw.choice((None, 100, 160)),
        "n_positions": CONTEXT,
        "layer_norm_epsilon": draw.choice((1e-5, 1e-3)),
        "activation_function": "gelu_new",
    }


def llama_fields(draw: Stream, number: int, head_dim: int, num_heads: int, num_kv_heads: int) -> dict[str, Any]:
    """Return what llama and its kin share; rope settings in the older keys or the newer, by turns."""
    theta = draw.choice((10_000.0, 500_000.0, 1_000.0))
    rope = (
        {"rope_theta": theta} if number % 4 < 2 else {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}
    )
    return rope | {
        "hidden_size": num_heads * head_dim,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "num_hidden_layers": draw.choice((2, 3)),
        "intermediate_size": draw.choice((64, 100, 160)),
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": draw.choice((1e-6, 1e-5, 1e-3)),
        "hidden_act": "silu",
    }


def family_fields(family: str, draw: Stream, number: int, num_heads: int, num_layers: int) -> dict[str, Any]:
    """Return what sets a family apart from llama's common part."""
    width = draw.choice([n for n in (40, 64, 72, 96, 100) if n % num_heads == 0])
    own_width = {"hidden_size": width, "head_dim": HEAD_DIMS[number % len(HEAD_DIMS)]}
    window = WINDOWS[number % len(WINDOWS)]
    if family == "llama":
        scaling = ROPE_SCALINGS[(number + number // 3) % 3]
        biases = {"attention_bias": number % 4 in (1, 2), "mlp_bias": number % 4 in (2, 3)}
        return biases | rope_scaling(draw, number, scaling) | (own_width if number % 2 else {})
    if family == "mistral":
        return own_width | {"sliding_window": window}
    mixed = {"use_sliding_window": number % 2 == 0, "sliding_window": window, "max_window_layers": 1}
    if number % 4 == 2:
        mixed["layer_types"] = ["sliding_attention"] + ["full_attention"] * (num_layers - 1)
    return mixed if family == "qwen2" else mixed | own_width | {"attention_bias": number % 4 == 3}


def rope_scaling(draw: Stream, number: int, scaling: dict[str, Any] | None) -> dict[str, Any]:
    """Return the rope keys of a llama: older form (type or rope_type in rope_scaling) or newer (rope_parameters)."""
    theta = draw.choice((10_000.0, 500_000.0))
    if number % 4 >= 2:
        return {"rope_parameters": {"rope_theta": theta} | (scaling or {"rope_type": "default"})}
    if scaling is not None and number % 2:
        scaling = {"type" if key == "rope_type" else key: value for key, value in scaling.items()}
    return {"rope_theta": theta, "rope_scaling": scaling}


# ---- One feature switched off ----------------------------------------------------------------------------------


def mutations(model: TinyModel) -> dict[str, TinyModel]:
    """Return the model without each feature that it has, by the feature's name; all other tensors are the same."""
    config, found = model.config, {}

    def without(feature: str, zeroed: tuple[str, ...] = (), **changes: Any) -> None:
        changed = {key: value for key, value in {**config, **changes}.items() if value is not ...}
        found[feature] = replace(model, name=f"{model.name} without {feature}", config=changed, zeroed=zeroed)

    without("tie", tie_word_embeddings=not config["tie_word_embeddings"])
    if config["model_type"] == "gpt2":
        without("bias", zeroed=(".bias",))
        without("positions", zeroed=(".wpe.",))
    if config["model_type"] == "qwen2":
        without("bias", model_type="llama") if not has_window(config) else without("bias", zeroed=("_proj.bias",))
    if config["model_type"] == "qwen3" and not has_window(config):
        without("qk_norm", model_type="llama")
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            without(key, **{key: False})
    if has_window(config):
        off = {"sliding_window": None} if config["model_type"] == "mistral" else {"use_sliding_window": False}
        without("window", layer_types=..., **off)
    if config.get("rope_scaling"):
        without("rope_scaling", rope_scaling=None)
    parameters = config.get("rope_parameters", {"rope_type": "default"})
    if parameters["rope_type"] != "default":
        plain = {"rope_type": "default", "rope_theta": parameters["rope_theta"]}
        without("rope_scaling", rope_parameters=plain)
    return found


def has_window(config: Config) -> bool:
    return config["model_type"] == "mistral" or bool(config.get("use_sliding_window"))
