"""Rotations that look at a context are fixed to the one that a model is opened with."""

from __future__ import annotations

from dataclasses import replace
from math import log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny.dense import ORIGINAL, ROPES, dense_model
from tiny.gguf_dense import write_dense_gguf
from tiny.models import CONTEXT, TinyModel
from tiny.recorded_dense import LONG
from tiny.tensors import write_directory

from kvist import LLM, CacheSpec
from kvist.checkpoint.catalog import open_checkpoint
from kvist.errors import ContextWarning
from kvist.model.decoder import load_decoder
from kvist.model.rope import RopeSpec, attention_factor, frequencies, rope_from_config

F32 = CacheSpec(codec="f32")
PAIRS = np.arange(0, 32, 2) / 32


def rope_of(scaling: dict[str, Any], **more: Any) -> RopeSpec:
    return rope_from_config({"rope_parameters": scaling, "max_position_embeddings": CONTEXT, **more}, 32)


def test_longrope_takes_short_factors_up_to_the_original_context_and_long_ones_beyond() -> None:
    rope = rope_of({**LONG, "short_factor": [1.5] * 16}, original_max_position_embeddings=ORIGINAL)
    short, long = (10_000.0**-PAIRS / np.array(factors) for factors in ([1.5] * 16, LONG["long_factor"]))
    for context, expected in ((1, short), (ORIGINAL, short), (ORIGINAL + 1, long), (CONTEXT, long), (9999, long)):
        assert np.allclose(frequencies(rope.for_context(context)), expected, rtol=1e-6, atol=0), context
    assert np.array_equal(frequencies(rope), frequencies(rope.for_context(CONTEXT)))


@pytest.mark.parametrize("context", [1, ORIGINAL, CONTEXT, 10 * CONTEXT])
def test_longrope_multiplies_cosines_as_the_model_was_trained(context: int) -> None:
    rope = rope_of(LONG, original_max_position_embeddings=ORIGINAL).for_context(context)
    assert attention_factor(rope) == pytest.approx(sqrt(1 + log(CONTEXT / ORIGINAL) / log(ORIGINAL)), rel=1e-12)


def test_a_dynamic_base_is_made_for_the_context() -> None:
    rope, plain = rope_of(ROPES["dynamic"]), frequencies(rope_of({}))
    for context in (1, CONTEXT):
        assert np.array_equal(frequencies(rope.for_context(context)), plain)
    base = 10_000.0 * (4.0 * 3 - 3) ** (32 / 30)
    assert np.allclose(frequencies(rope.for_context(3 * CONTEXT)), base**-PAIRS, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", sorted(set(ROPES) - {"dynamic"}))
def test_other_scalings_look_at_no_context(name: str) -> None:
    rope = rope_of(ROPES[name])
    assert rope.for_context(17) is rope


def with_short_factors(model: TinyModel) -> TinyModel:
    rope = model.config["rope_parameters"]
    return replace(model, config={**model.config, "rope_parameters": rope | {"long_factor": rope["short_factor"]}})


@pytest.mark.parametrize("write", [write_directory, write_dense_gguf], ids=("directory", "gguf"))
def test_a_model_opened_with_its_original_context_computes_with_short_factors(write, tmp_path: Path) -> None:
    model = dense_model("phi3", 0)
    ids = model.prompt(ORIGINAL)

    def logits(model: TinyModel, name: str, context: int | None) -> bytes:
        with LLM(write(model, tmp_path / name), cache=F32, context=context) as llm:
            assert llm.logits(ids).tobytes() == llm.logits(ids, cache=False).tobytes()
            return llm.logits(ids).tobytes()

    short = logits(with_short_factors(model), "short.gguf", None)
    long = logits(model, "model.gguf", None)
    assert short != long
    assert logits(model, "model.gguf", ORIGINAL) == short
    assert logits(model, "model.gguf", ORIGINAL + 1) == long
    assert logits(model, "model.gguf", CONTEXT) == long


def test_a_dynamic_model_opened_beyond_its_context_computes_with_another_base(tmp_path: Path) -> None:
    model = dense_model("olmo", 3)
    rope, dim = model.config["rope_parameters"], model.config["hidden_size"] // model.config["num_attention_heads"]
    assert rope["rope_type"] == "dynamic"
    base = rope["rope_theta"] * (rope["factor"] * 4 - (rope["factor"] - 1)) ** (dim / (dim - 2))
    stretched = replace(model, config={**model.config, "rope_parameters": {"rope_theta": base}})
    ids = model.prompt(40)
    with LLM(write_directory(stretched, tmp_path / "stretched"), cache=F32) as llm:
        expected = llm.logits(ids)
    path = write_directory(model, tmp_path / "model")
    with LLM(path, cache=F32) as llm:
        plain = llm.logits(ids)
    with pytest.warns(ContextWarning), LLM(path, cache=F32, context=4 * CONTEXT) as llm:
        found = llm.logits(ids)
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
    assert np.abs(found - plain).max() > 1e-2 * np.abs(plain).max()


def test_blocks_of_two_rotations_have_other_names_and_those_of_one_the_same(tmp_path: Path) -> None:
    def identity(model: TinyModel, context: int | None) -> bytes:
        checkpoint = open_checkpoint(write_directory(model, tmp_path / model.name))
        decoder = load_decoder(checkpoint, context=context)
        decoder.close()
        checkpoint.close()
        return decoder.identity

    scaled, plain = dense_model("phi3", 0), dense_model("phi3", 2)
    assert plain.config["rope_parameters"]["rope_type"] == "default"
    assert identity(scaled, ORIGINAL) != identity(scaled, None) == identity(scaled, CONTEXT)
    assert identity(plain, ORIGINAL) == identity(plain, None)
