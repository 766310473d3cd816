"""A config for planning from any GGUF header, also of architectures that the engine doesn't run.

GGUF has one vocabulary for all architectures, and lists by layer where layers differ: a layer without KV heads is a
recurrence. What it doesn't say (which layers slide) follows from the architecture's rules in ``spec``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvist.errors import SpecError, UnsupportedError
from kvist.spec.model_types import MODEL_TYPES

_NAMES = {
    "chatglm": "glm",
    "command-r": "cohere",
    "deepseek2": "deepseek_v3",
    "ernie4_5-moe": "ernie4_5_moe",
    "falcon-h1": "falcon_h1",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "glm4moe": "glm4_moe",
    "gpt-oss": "gpt_oss",
    "gptneox": "gpt_neox",
    "granitehybrid": "granitemoehybrid",
    "hunyuan-dense": "hunyuan_v1_dense",
    "hunyuan-moe": "hunyuan_v1_moe",
    "lfm2moe": "lfm2_moe",
    "llama4": "llama4_text",
    "nemotron_h_moe": "nemotron_h",
    "phi2": "phi",
    "qwen2moe": "qwen2_moe",
    "qwen35": "qwen3_5_text",
    "qwen35moe": "qwen3_5_moe_text",
    "qwen3moe": "qwen3_moe",
    "qwen3next": "qwen3_next",
    "starcoder": "gpt_bigcode",
}
_PLAIN = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "v_head_dim": "attention.value_length",
    "sliding_window": "attention.sliding_window",
    "num_kv_shared_layers": "attention.shared_kv_layers",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "kv_lora_rank": "attention.kv_lora_rank",
    "q_lora_rank": "attention.q_lora_rank",
    "index_head_dim": "attention.indexer.key_length",
    "conv_L_cache": "shortconv.l_cache",
}
_LATENT_HEADS = {"qk_rope_head_dim": "rope.dimension_count", "v_head_dim": "attention.value_length_mla"}


@dataclass(frozen=True)
class _Keys:
    """A header's keys behind its architecture's name."""

    metadata: Mapping[str, object]
    architecture: str

    def value(self, key: str) -> object:
        return self.metadata.get(f"{self.architecture}.{key}")

    def listed(self, key: str) -> list[int] | None:
        """The values by layer, None where there is one for all."""
        value = self.value(key)
        if not isinstance(value, Iterable) or isinstance(value, str):
            return None
        return [int(item) for item in value]

    def most(self, key: str) -> object:
        """The value; of a list by layer the largest."""
        listed = self.listed(key)
        return self.value(key) if listed is None else max(listed, default=None)

    def count(self, key: str) -> int:
        """A whole number. Raises SpecError where there is none."""
        value = self.most(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise SpecError(
                f"the header's {self.architecture}.{key} must be a positive whole number, got {value!r:.40}"
            )
        return value


def config_from_header(metadata: Mapping[str, object]) -> dict[str, object]:
    """Return a config in Hugging Face's keys.

    Raises:
        UnsupportedError: an architecture without rules.
        SpecError: a key is missing or of the wrong type.
    """
    architecture = str(metadata.get("general.architecture", ""))[:100]
    model_type = _NAMES.get(architecture, architecture)
    if model_type not in MODEL_TYPES:
        known = ", ".join(sorted({*_NAMES, *MODEL_TYPES} - set(_NAMES.values())))
        raise UnsupportedError(f'no rules for GGUF\'s architecture "{architecture}"; known: {known}')
    keys = _Keys(metadata, architecture)
    config = {name: value for name, key in _PLAIN.items() if (value := keys.most(key)) is not None}
    config |= {"model_type": model_type, "vocab_size": _vocab_size(keys)}
    if "kv_lora_rank" in config:
        config |= {name: value for name, key in _LATENT_HEADS.items() if (value := keys.most(key)) is not None}
        config.pop("head_dim", None)
        config.setdefault("qk_nope_head_dim", 128)
    if "conv_L_cache" in config or keys.value("ssm.conv_kernel") is not None:
        config |= _layer_types(keys)
        config |= _state(keys, model_type)
    return config


def _vocab_size(keys: _Keys) -> object:
    stated = keys.value("vocab_size")
    tokens = keys.metadata.get("tokenizer.ggml.tokens")
    return stated if stated is not None or not isinstance(tokens, Sequence) else len(tokens)


def _layer_types(keys: _Keys) -> dict[str, object]:
    """Say which layers have KV heads; in Nemotron-H a layer without them and without a wide MLP is a recurrence."""
    heads, widths = keys.listed("attention.head_count_kv"), keys.listed("feed_forward_length")
    if heads is None:
        return {}
    names = ["full_attention" if number else "linear_attention" for number in heads]
    if keys.architecture.startswith("nemotron_h") and widths is not None and len(widths) == len(heads):
        names = ["mlp" if width and not heads[at] else names[at] for at, width in enumerate(widths)]
    if keys.value("shortconv.l_cache") is not None:
        names = [name if name == "full_attention" else "conv" for name in names]
    return {"layer_types": names}


def _state(keys: _Keys, model_type: str) -> dict[str, int]:
    """Return the recurrence's sizes under the names that the model type's rule reads."""
    if keys.value("ssm.conv_kernel") is None:
        return {}
    kernel, inner, size = (keys.count(f"ssm.{key}") for key in ("conv_kernel", "inner_size", "state_size"))
    width = keys.count("embedding_length")
    if model_type in ("mamba", "falcon_mamba"):
        return {"expand": inner // width, "state_size": size, "conv_kernel": kernel}
    if model_type == "jamba":
        return {"mamba_expand": inner // width, "mamba_d_state": size, "mamba_d_conv": kernel} | _period(keys)
    heads, groups = keys.count("ssm.time_step_rank"), keys.count("ssm.group_count")
    if model_type.startswith("qwen3"):
        dims = {"linear_key_head_dim": size, "linear_value_head_dim": inner // heads}
        counts = {"linear_num_value_heads": heads, "linear_num_key_heads": groups}
        return {**dims, **counts, "linear_conv_kernel_dim": kernel}
    if model_type in ("mamba2", "nemotron_h"):
        names = ("num_heads", "head_dim", "state_size") if model_type == "mamba2" else _NEMOTRON_NAMES
        return dict(zip(names, (heads, inner // heads, size), strict=True)) | {
            "n_groups": groups,
            "conv_kernel": kernel,
        }
    sizes = {
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_d_ssm": inner,
        "mamba_d_state": size,
    }
    return {**sizes, "mamba_n_groups": groups, "mamba_d_conv": kernel}


_NEMOTRON_NAMES = ("mamba_num_heads", "mamba_head_dim", "ssm_state_size")


def _period(keys: _Keys) -> dict[str, int]:
    """Jamba's rule as a period and an offset, from the list of KV heads."""
    heads = keys.listed("attention.head_count_kv") or []
    places = [at for at, number in enumerate(heads) if number]
    period = places[1] - places[0] if len(places) > 1 else max(keys.count("block_count"), 1)
    return {"attn_layer_period": period, "attn_layer_offset": places[0] if places else 0}
