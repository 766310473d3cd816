"""Tiny text models as a model that also reads images keeps them: prefixed, beside other tensors, in a config's part."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tiny.models import Config, TinyModel
from tiny.tensors import tensors

Array = np.ndarray[Any, Any]

PREFIXES: Mapping[str, tuple[str, str, str]] = {
    "transformers 4": ("language_model.model.", "language_model.lm_head.", "vision_tower."),
    "transformers 5": ("model.language_model.", "lm_head.", "model.vision_tower."),
    "text_model": ("model.text_model.", "lm_head.", "model.vision_model."),
    "flat": ("model.", "lm_head.", "visual."),
}
"""What stands before a layer's, the output's and an image's tensors."""

WRAPPED = {
    "gemma3": "gemma3_text",
    "idefics3": "llama",
    "internvl": "qwen2",
    "llava": "llama",
    "llava_next": "mistral",
    "llava_onevision": "qwen2",
    "mistral3": "mistral",
    "qwen2_5_vl": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen3_vl": "qwen3",
    "smolvlm": "llama",
}
"""The family of each kind's text model."""


def wrapped_config(kind: str, text: Config, **outer: Any) -> dict[str, Any]:
    """Return a whole model's config.json whose text part is ``text``."""
    return {"model_type": kind, "text_config": dict(text), "vision_config": {"hidden_size": 32}, **outer}


def wrapped_tensors(model: TinyModel, layout: str) -> dict[str, Array]:
    """Return a text model's tensors by a whole model's names, and one that reads images."""
    layers, output, image = PREFIXES[layout]
    found = {
        output + name.removeprefix("lm_head.")
        if name.startswith("lm_head.")
        else layers + name.removeprefix("model."): array
        for name, array in tensors(model).items()
    }
    return found | {f"{image}patch_embedding.weight": np.full((8, 3, 2, 2), 7, np.float32)}


def write_wrapped(model: TinyModel, path: Path, layout: str, config: Config) -> Path:
    """Write a directory and return ``path``."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
    save_file(wrapped_tensors(model, layout), path / "model.safetensors", metadata={"format": "pt"})
    return path
