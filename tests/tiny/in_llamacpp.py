"""Tiny models that a GGUF file can say and llama.cpp runs as kvist does, and what llama.cpp said of some of them.

Of what transformers runs, llama.cpp leaves out: biases of families that have none in published models, matrices shared
between embedding and output where none has that, falcons with blocks in sequence, windows of Mistral, Phi-3 and
StarCoder 2 (which it doesn't apply; kvist does), and norms of experts' gains other than the family's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tiny.deepseek import deepseek_model
from tiny.deepseek_gguf import write_deepseek_gguf
from tiny.dense import dense_model
from tiny.experts import expert_model
from tiny.gguf_dense import write_dense_gguf
from tiny.gguf_file import write_gguf
from tiny.models import TinyModel, tiny_model
from tiny.recorded import DATA

Array = np.ndarray[Any, Any]

FILE = DATA / "llamacpp_families.npz"
PROMPT_TOKENS = 150
ROWS = (0, 17, 149)

_MODELS: tuple[tuple[Callable[[str, int], TinyModel], dict[str, tuple[int, ...]]], ...] = (
    (tiny_model, dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gpt2"), (0, 1, 2, 3, 4, 5))),
    (
        dense_model,
        {
            **dict.fromkeys(("gemma", "gemma2"), (0, 2, 4)),  # their embedding is their output
            **dict.fromkeys(("gemma3_text", "phi3", "phi", "gpt_neox", "granite", "smollm3", "olmo"), (0, 1, 2, 7)),
            "falcon": (0, 1, 2, 3, 5),
            "starcoder2": (0, 1, 7),
            **dict.fromkeys(("stablelm", "olmo2"), (1, 3, 7)),
        },
    ),
    (
        expert_model,
        {
            **dict.fromkeys(("mixtral", "granitemoe"), (0, 1, 2, 3)),
            "qwen3_moe": (0, 1),
            **dict.fromkeys(("qwen2_moe", "olmoe"), (1,)),
            "gpt_oss": (1, 3, 5),  # 5 has a scaled rotation
        },
    ),
    (deepseek_model, {"deepseek_v2": (2, 8), "deepseek_v3": (2, 8)}),
)
_CHANGES: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "mixtral": {"sliding_window": None},
    "phi3": {"sliding_window": None},
    "starcoder2": {"sliding_window": None, "use_bias": True},
    "qwen3": {"attention_bias": False},
    "falcon": {"bias": False},
    "gpt_neox": {"attention_bias": True},
    **{name: {"attention_bias": False} for name in ("gemma", "gemma2", "gemma3_text", "olmo", "olmo2", "smollm3")},
    "gpt_oss": {"attention_bias": True},
    "qwen2_moe": {"norm_topk_prob": False},
    "olmoe": {"norm_topk_prob": False, "num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 48},
    "deepseek_v2": {"rms_norm_eps": 1e-6},  # which their latents' norms have, whatever a config says
    "deepseek_v3": {"rms_norm_eps": 1e-6, "rope_interleave": True},
}

EXACT_GELUS = {
    **dict.fromkeys(("gpt2", "gemma", "gemma2", "gemma3_text", "phi", "starcoder2"), "tanh"),
    **dict.fromkeys(("gpt_neox", "falcon"), "erf"),
}
"""Families with GELU, and the form of it that kvist computes for a GGUF file, as the models were trained."""


@dataclass(frozen=True)
class Case:
    model: TinyModel
    write: Callable[[TinyModel, Path], object]

    def file(self, directory: Path) -> Path:
        path = directory / f"{self.model.name}.gguf"
        self.write(self.model, path)
        return path


def cases() -> list[Case]:
    return [
        Case(_changed(make(family, number)), _writer(make))
        for make, families in _MODELS
        for family, numbers in families.items()
        for number in numbers
    ]


def recorded_cases() -> list[Case]:
    """The first of each family."""
    first: dict[str, Case] = {}
    for case in cases():
        first.setdefault(case.model.family, case)
    return list(first.values())


def recorded(model: TinyModel) -> tuple[str, Array]:
    """The digest of the model that was recorded, and llama.cpp's logits [len(ROWS), V]."""
    with np.load(FILE, allow_pickle=False) as data:
        return str(data[f"{model.name}/digest"]), data[f"{model.name}/logits"]


def _changed(model: TinyModel) -> TinyModel:
    return replace(model, config={**model.config, **_CHANGES.get(model.family, {})})


def _writer(make: Callable[[str, int], TinyModel]) -> Callable[[TinyModel, Path], object]:
    if make is dense_model:
        return write_dense_gguf
    return write_deepseek_gguf if make is deepseek_model else write_gguf
