"""The kinds of models whose configs are understood: one row a ``model_type``.

A row is four rules: which kind each layer is, how many heads and how wide, what a recurrence keeps, and what the
weights are. The defaults that live only in the reference library's config classes stand in ``defaults.json``. A
new model type is a row here and, where it has defaults of its own, a line there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kvist.spec import attention, layer_types, recurrence, windows
from kvist.spec.layer_types import FULL, HYBRID, LINEAR, SLIDING

_EVERY_LAYER_FULL = layer_types.every_layer(FULL)


@dataclass(frozen=True)
class ModelType:
    """The rules of one model type. ``has_cross``: every layer also attends to an encoder's output."""

    layers: layer_types.Rule = _EVERY_LAYER_FULL
    heads: attention.Rule = attention.grouped
    state: recurrence.Rule | None = None
    window: windows.Rule = windows.stated
    has_cross: bool = False


def _mostly_sliding(period: int, *keys: str) -> ModelType:
    return ModelType(layer_types.last_of(period, *keys))


_SLIDING = ModelType(layer_types.every_layer(SLIDING))
_QWEN = ModelType(layer_types.qwen, window=windows.if_used)
_LATENT = ModelType(heads=attention.latent)
_MULTI_HEAD = ModelType(heads=attention.multi_head)
_CROSS = ModelType(heads=attention.multi_head, has_cross=True)
_GATED_DELTA = ModelType(
    layer_types.last_of(4, "full_attention_interval", others=LINEAR), state=recurrence.gated_delta_net
)

MODEL_TYPES: Mapping[str, ModelType] = {
    "afmoe": _mostly_sliding(4, "global_attn_every_n_layers"),
    "apertus": ModelType(),
    "arcee": ModelType(),
    "bamba": ModelType(layer_types.listed_full("attn_layer_indices", LINEAR), state=recurrence.bamba),
    "bart": _CROSS,
    "bitnet": ModelType(),
    "bloom": _MULTI_HEAD,
    "codegen": _MULTI_HEAD,
    "cohere": ModelType(heads=attention.width_by_heads),
    "cohere2": ModelType(layer_types.last_of(4, "sliding_window_pattern"), attention.width_by_heads),
    "cwm": ModelType(layer_types.first_of(4)),
    "dbrx": ModelType(heads=attention.dbrx),
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "deepseek_v32": _LATENT,
    "dots1": ModelType(layer_types.qwen),
    "ernie4_5": ModelType(),
    "ernie4_5_moe": ModelType(),
    "exaone4": _mostly_sliding(4, "sliding_window_pattern"),
    "falcon": ModelType(heads=attention.falcon),
    "falcon_h1": ModelType(layer_types.every_layer(HYBRID), state=recurrence.bamba),
    "falcon_mamba": ModelType(layer_types.every_layer(LINEAR), state=recurrence.mamba),
    "gemma": ModelType(),
    "gemma2": _mostly_sliding(2),
    "gemma3_text": ModelType(layer_types.last_of(6, "sliding_window_pattern"), window=windows.gemma),
    "gemma3n_text": _mostly_sliding(5),
    "gemma4_text": ModelType(layer_types.last_of(6), attention.gemma4, window=windows.gemma),
    "glm": ModelType(),
    "glm4": ModelType(),
    "glm4_moe": ModelType(),
    "glm4_moe_lite": _LATENT,
    "glm_moe_dsa": _LATENT,
    "gpt2": _MULTI_HEAD,
    "gpt_bigcode": ModelType(heads=attention.multi_query),
    "gpt_neo": ModelType(layer_types.gpt_neo, attention.multi_head),
    "gpt_neox": _MULTI_HEAD,
    "gpt_oss": _mostly_sliding(2),
    "gptj": _MULTI_HEAD,
    "granite": ModelType(),
    "granitemoe": ModelType(),
    "granitemoehybrid": ModelType(layer_types.stated_or(layer_types.every_layer(LINEAR)), state=recurrence.bamba),
    "granitemoeshared": ModelType(),
    "helium": ModelType(),
    "hunyuan_v1_dense": ModelType(),
    "hunyuan_v1_moe": ModelType(),
    "internlm3": ModelType(),
    "jamba": ModelType(layer_types.jamba, state=recurrence.jamba),
    "jetmoe": ModelType(heads=attention.jetmoe),
    "kimi_linear": ModelType(layer_types.stated_or(layer_types.kimi_linear), attention.latent, recurrence.kimi_delta),
    "lfm2": ModelType(layer_types.stated_or(layer_types.lfm2), state=recurrence.short_convolution),
    "lfm2_moe": ModelType(layer_types.stated_or(layer_types.lfm2), state=recurrence.short_convolution),
    "llama": ModelType(),
    "llama4_text": ModelType(layer_types.stated_or(layer_types.without_rope)),
    "longcat_flash": _LATENT,
    "m2m_100": _CROSS,
    "mamba": ModelType(layer_types.every_layer(LINEAR), state=recurrence.mamba),
    "mamba2": ModelType(layer_types.every_layer(LINEAR), state=recurrence.mamba2),
    "marian": _CROSS,
    "mbart": _CROSS,
    "mimo_v2_flash": ModelType(layer_types.stated_or(layer_types.mimo), attention.mimo, window=windows.mimo),
    "minicpm3": _LATENT,
    "minimax": ModelType(layer_types.stated_or(layer_types.minimax), state=recurrence.lightning),
    "minimax_m2": ModelType(),
    "ministral": ModelType(layer_types.stated_or(layer_types.every_layer(SLIDING))),
    "ministral3": _SLIDING,
    "mistral": _SLIDING,
    "mixtral": _SLIDING,
    "mllama_text_model": ModelType(layer_types.mllama),
    "mpt": _MULTI_HEAD,
    "mt5": ModelType(heads=attention.t5, has_cross=True),
    "nemotron": ModelType(),
    "nemotron_h": ModelType(layer_types.stated_or(layer_types.nemotron_h), state=recurrence.nemotron_h),
    "olmo": ModelType(),
    "olmo2": ModelType(),
    "olmo3": _mostly_sliding(4),
    "olmo_hybrid": ModelType(layer_types.last_of(4, others=LINEAR), state=recurrence.gated_delta_net),
    "olmoe": ModelType(),
    "opt": _MULTI_HEAD,
    "pegasus": _CROSS,
    "persimmon": _MULTI_HEAD,
    "phi": ModelType(),
    "phi3": _SLIDING,
    "phimoe": _SLIDING,
    "qwen2": _QWEN,
    "qwen2_moe": ModelType(layer_types.qwen2_moe, window=windows.if_used),
    "qwen3": _QWEN,
    "qwen3_5_moe_text": _GATED_DELTA,
    "qwen3_5_text": _GATED_DELTA,
    "qwen3_moe": ModelType(layer_types.every_layer(SLIDING), window=windows.if_used),
    "qwen3_next": _GATED_DELTA,
    "recurrent_gemma": ModelType(layer_types.recurrent_gemma, state=recurrence.linear_recurrent_unit),
    "seed_oss": ModelType(),
    "smollm3": ModelType(layer_types.stated_or(layer_types.sliding_without_rope), window=windows.if_used),
    "stablelm": ModelType(),
    "starcoder2": _SLIDING,
    "t5": ModelType(heads=attention.t5, has_cross=True),
    "umt5": ModelType(heads=attention.t5, has_cross=True),
    "whisper": _CROSS,
    "zamba2": ModelType(layer_types.stated_or(layer_types.zamba2), attention.twice_as_wide, recurrence.zamba2),
}

TEXT_PARTS: Mapping[str, str] = {
    "aya_vision": "cohere2",
    "chameleon": "llama",
    "cohere2_vision": "cohere2",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "idefics2": "mistral",
    "idefics3": "llama",
    "internvl": "qwen2",
    "kimi_k25": "deepseek_v3",
    "lfm2_vl": "lfm2",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "llava_next_video": "llama",
    "llava_onevision": "qwen2",
    "mistral3": "mistral",
    "mllama": "mllama_text_model",
    "ovis2": "qwen2",
    "paligemma": "gemma",
    "qwen2_5_vl": "qwen2",
    "qwen2_audio": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "smolvlm": "llama",
    "video_llava": "llama",
    "vipllava": "llama",
    "voxtral": "llama",
}
"""Model types of several parts, and the type of their text part where the config doesn't repeat it."""

ALIASES: Mapping[str, str] = {
    "mistral3_text": "mistral",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "code_llama": "llama",
    "glm4v_moe_text": "glm4_moe",
    "glm4v_text": "glm4",
    "kimi_k2": "deepseek_v3",
    "minimax_m1": "minimax",
    "minimax_text_01": "minimax",
    "phi4_multimodal": "phi3",
    "phi4mm": "phi3",
    "qwen2_5_omni_text": "qwen2",
    "qwen3_omni_moe_text": "qwen3_moe",
    "gpt-sw3": "gpt2",
}
"""Other names of the same rules."""


@lru_cache(maxsize=1)
def class_defaults() -> Mapping[str, Mapping[str, object]]:
    """Return what the reference library's config class of each model type assumes for absent keys."""
    table: Mapping[str, Mapping[str, object]] = json.loads(Path(__file__).with_name("defaults.json").read_text("utf-8"))
    return table
