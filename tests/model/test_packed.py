"""Whole passes over packed weights, against the lesson with the same numbers and the same int8 inputs.

With the same int8 inputs the two agree to float rounding, except where that rounding tips a code over: such a row is
off by about a step of the int8 form. So most rows are held to rounding, and all of them to a few steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from proof.cases import CASES
from tiny.compare import TOLERANCE, row_errors
from tiny.gguf_file import write_gguf
from tiny.lesson import lesson_config, lesson_weights
from tiny.models import TinyModel

from kvist import LLM, CacheSpec, reference

Array = np.ndarray[Any, Any]
MODELS = [TinyModel(f"llama-{seed}", CASES["f32"].config, seed) for seed in (1, 2, 3)] + [
    TinyModel("qwen3-4", {**CASES["f32"].config, "model_type": "qwen3", "tie_word_embeddings": False}, 4)
]


def as_int8(x: Array) -> Array:
    """Each group of 32 numbers of the last axis rounded to 127 steps of its largest."""
    groups = x.reshape(*x.shape[:-1], -1, 32)
    largest = np.abs(groups).max(axis=-1, keepdims=True)
    codes = np.clip(np.rint(groups * (np.float32(127) / largest)), -127, 127)
    return (codes * (largest / np.float32(127))).reshape(x.shape).astype(np.float32)


def logits_of(model: TinyModel, form: str, path: Path) -> tuple[Array, Array]:
    """(kvist's logits of a prompt, the lesson's) for the model with its matrices in one form."""
    found = write_gguf(model, path / "model.gguf", form)
    token_ids = model.prompt(60)
    expected = reference.forward(lesson_weights(model.config, found), lesson_config(model.config), token_ids)
    with LLM(path / "model.gguf", cache=CacheSpec("f32")) as llm:
        return llm.logits(token_ids), expected


@pytest.mark.parametrize("form", ["q8_0", "q4_0", "q4_1"])
def test_quantised(form: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    linear = reference.linear
    monkeypatch.setattr(reference, "linear", lambda x, weights, name: linear(as_int8(x), weights, name))
    errors = np.concatenate([row_errors(*logits_of(model, form, tmp_path)) for model in MODELS])
    assert np.median(errors) < 2e-6
    assert np.quantile(errors, 0.75) < 1e-5
    assert errors.max() < 0.06


def test_quantised_in_wide_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Q4_K's blocks are of 256: rows four times as wide, in which a code tips over sooner, and later rows read it.

    So the first rows of texts are held to rounding, and all to a few steps. The attention output, 96 wide, is Q8_0, as
    such rows fall back to other types in published files.
    """
    changes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}
    linear = reference.linear
    monkeypatch.setattr(reference, "linear", lambda x, weights, name: linear(as_int8(x), weights, name))
    wide = [TinyModel(f"llama-{seed}", {**CASES["f32"].config, **changes}, seed) for seed in range(5, 9)]
    errors = np.stack([row_errors(*logits_of(model, "q4_k", tmp_path)) for model in wide])
    assert np.median(errors[:, :4]) < 2e-6
    assert errors.max() < 0.06


@pytest.mark.parametrize("form", ["f16", "bf16"])
def test_halves(form: str, tmp_path: Path) -> None:
    for model in MODELS:
        assert row_errors(*logits_of(model, form, tmp_path)).max() < TOLERANCE
