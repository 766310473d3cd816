"""kvist against transformers on tiny models that also read images: what text alone gives, under both kinds of names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracles.cases import F32
from safetensors.torch import load_file, save_file
from tiny.compare import TOLERANCE, row_errors
from tiny.dense import dense_model
from tiny.models import TinyModel, tiny_model
from tiny.tensors import tensors
from tiny.wrapped import WRAPPED
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText

from kvist import LLM

_VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_QWEN = {"depth": 1, "num_heads": 2, "hidden_size": 32, "intermediate_size": 64}


def outer(kind: str, width: int) -> dict[str, Any]:
    """What reads images, as small as it goes; ``width`` is the text model's."""
    if kind == "qwen2_vl":
        return {"vision_config": {"depth": 1, "num_heads": 2, "embed_dim": 32, "mlp_ratio": 2, "hidden_size": width}}
    if kind == "qwen2_5_vl":
        return {"vision_config": {**_QWEN, "out_hidden_size": width}}
    if kind == "qwen3_vl":
        return {"vision_config": {**_QWEN, "out_hidden_size": width, "deepstack_visual_indexes": [0]}}
    vision: dict[str, Any] = dict(_VISION)
    if kind in ("llava", "llava_next"):
        vision |= {"model_type": "clip_vision_model", "projection_dim": 16}
    elif kind == "mistral3":
        vision |= {"model_type": "pixtral", "head_dim": 16}
    elif kind in ("gemma3", "llava_onevision"):
        vision |= {"model_type": "siglip_vision_model"}
    return {"vision_config": vision} | ({"mm_tokens_per_image": 4} if kind == "gemma3" else {})


ABSENT = {"gemma3": {"final_logit_softcapping"}, "qwen3_vl": {"use_sliding_window", "layer_types"}}
"""What a text model has alone and transformers leaves out of the whole one; no published config has it."""


def text_model(kind: str, number: int) -> TinyModel:
    family = WRAPPED[kind]
    model = dense_model(family, number) if family.startswith("gemma") else tiny_model(family, number)
    return replace(model, config={key: model.config[key] for key in model.config if key not in ABSENT.get(kind, ())})


def whole_model(kind: str, text: TinyModel) -> torch.nn.Module:
    """transformers' own model of a kind, with the text model's weights in it."""
    config = dict(text.config)
    if kind.startswith("qwen"):
        dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        sections = [dim // 2 - 2 * (dim // 6), dim // 6, dim // 6]
        rope = config.pop("rope_parameters", None) or {"rope_theta": config.pop("rope_theta", 1e6)}
        config["rope_parameters"] = {"rope_type": "default", **rope, "mrope_section": sections}
        config["model_type"] = f"{kind}_text"
    is_tied = config["tie_word_embeddings"]
    made = CONFIG_MAPPING[kind](text_config=config, **outer(kind, config["hidden_size"]), tie_word_embeddings=is_tied)
    model = AutoModelForImageTextToText.from_config(made, attn_implementation="eager").float().eval()
    numbers = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in tensors(text).items()}
    output = numbers.pop("lm_head.weight", None)
    inner = getattr(model.model, "text_model", None) or model.model.language_model
    inner.load_state_dict({name.removeprefix("model."): tensor for name, tensor in numbers.items()})
    assert (output is None) == is_tied
    with torch.no_grad():
        model.lm_head.weight.copy_(inner.embed_tokens.weight if output is None else output)
    return model


KINDS = ("gemma3", "idefics3", "internvl", "llava", "llava_next", "llava_onevision", "mistral3")
KINDS += ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "smolvlm")


RENAMED = {
    "language_model.model.": "model.language_model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "language_model.model.",
    "lm_head.": "language_model.lm_head.",
}
"""How transformers 5's names begin where 4's do, and the other way round."""


def rename(path: Path) -> None:
    """Give a written directory's tensors the names of the other generation."""
    file, found = path / "model.safetensors", {}
    for name, tensor in load_file(file).items():
        start = next((start for start in RENAMED if name.startswith(start)), "")
        found[RENAMED.get(start, "") + name.removeprefix(start)] = tensor
    save_file(found, file, metadata={"format": "pt"})


@pytest.mark.parametrize("number", [0, 1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_text(kind: str, number: int, tmp_path: Path, measured) -> None:
    text = text_model(kind, number)
    model = whole_model(kind, text)
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == kind
    for length in (17, 200):
        ids = text.prompt(length)
        with torch.inference_mode():
            expected = np.asarray(model(torch.tensor([ids]), use_cache=False).logits[0])
        with LLM(tmp_path, cache=F32) as llm:
            error = row_errors(llm.logits(ids), expected).max()
        measured(kind, "logits of text alone, worst row error", error)
        assert error < TOLERANCE
    if kind in ("gemma3", "llava", "llava_next", "llava_onevision", "mistral3"):
        rename(tmp_path)
        with LLM(tmp_path, cache=F32) as llm:
            assert row_errors(llm.logits(ids), expected).max() < TOLERANCE
