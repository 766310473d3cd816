"""The text model of one that also reads images: the bytes of the logits that it gives alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tiny.dense import dense_model
from tiny.models import TinyModel, tiny_model
from tiny.tensors import write_directory
from tiny.wrapped import WRAPPED, wrapped_config, wrapped_tensors, write_wrapped

from kvist import LLM, CacheSpec
from kvist.checkpoint.text_part import WRAPPERS, text_config
from kvist.engine.files import open_model
from kvist.errors import CheckpointError, KvistError, UnsupportedError
from kvist.spec.config import model_spec_from_config

F32 = CacheSpec(codec="f32")


def text_model(family: str, number: int = 0) -> TinyModel:
    return dense_model(family, number) if family.startswith("gemma") else tiny_model(family, number)


def logits(path: Path, ids: list[int]) -> bytes:
    with LLM(path, cache=F32, threads=2) as llm:
        return llm.logits(ids).tobytes()


def without(config: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


@pytest.mark.parametrize(
    ("kind", "layout", "number"),
    [
        ("gemma3", "transformers 4", 0),
        ("gemma3", "transformers 5", 1),
        ("mistral3", "transformers 5", 1),
        ("llava", "transformers 4", 1),
        ("llava_onevision", "transformers 4", 0),
        ("smolvlm", "text_model", 1),
        ("qwen2_vl", "transformers 5", 0),
        ("qwen3_vl", "transformers 5", 0),
    ],
)
def test_logits_are_those_of_the_text_model_alone(kind: str, layout: str, number: int, tmp_path: Path) -> None:
    model = text_model(WRAPPED[kind], number)
    ids = model.prompt(40)
    expected = logits(write_directory(model, tmp_path / "alone"), ids)
    path = write_wrapped(model, tmp_path / "whole", layout, wrapped_config(kind, model.config))
    assert logits(path, ids) == expected


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl"])
def test_positions_of_several_axes_are_plain_ones_for_text(kind: str, tmp_path: Path) -> None:
    """As published: the text model's keys beside the whole one's, and rotations of three axes."""
    model = text_model("qwen2", 0)
    rope = {"type": "mrope", "mrope_section": [2, 3, 3]}
    config = {**model.config, "model_type": kind, "rope_scaling": rope, "vision_config": {"hidden_size": 32}}
    ids = model.prompt(40)
    expected = logits(write_directory(model, tmp_path / "alone"), ids)
    assert logits(write_wrapped(model, tmp_path / "whole", "flat", config), ids) == expected


def test_what_the_class_of_a_text_model_assumes() -> None:
    """gemma-3-4b's config.json, as it is published."""
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    whole = wrapped_config("gemma3", text, eos_token_id=[1, 106], torch_dtype="bfloat16")
    found = text_config(whole, has_output=False)
    spec = model_spec_from_config(found)
    assert found["eos_token_id"] == [1, 106]
    assert (spec.architecture, spec.vocab_size, spec.context_length, spec.is_tied) == (
        "gemma3_text",
        262_208,
        131_072,
        True,
    )
    assert {(layer.num_heads, layer.num_kv_heads, layer.k_dim) for layer in spec.layers} == {(8, 4, 256)}
    assert [layer.window for layer in spec.layers] == [None if n % 6 == 5 else 1024 for n in range(34)]
    assert spec.layers == model_spec_from_config(whole).layers


@pytest.mark.parametrize(
    ("outer", "inner", "has_output", "is_tied"),
    [
        ({}, {}, True, False),
        ({}, {"tie_word_embeddings": True}, True, True),
        ({"tie_word_embeddings": False}, {"tie_word_embeddings": True}, True, False),
        ({"tie_word_embeddings": False}, {"tie_word_embeddings": True}, False, True),
        ({}, {"tie_word_embeddings": False}, False, False),
    ],
)
def test_the_output_is_tied_where_it_is_said_or_is_not_in_the_file(
    outer: dict[str, Any], inner: dict[str, Any], has_output: bool, is_tied: bool
) -> None:
    text = without(text_model("qwen2").config, "tie_word_embeddings")
    config = wrapped_config("llava_onevision", text | inner, **outer)
    assert text_config(config, has_output=has_output)["tie_word_embeddings"] is is_tied


def test_what_a_config_leaves_out_is_what_the_text_class_assumes(tmp_path: Path) -> None:
    model = text_model("gemma3_text", 0)
    config = {**model.config, "head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4}
    config |= {"hidden_size": 64, "num_hidden_layers": 2, "rms_norm_eps": 1e-6, "query_pre_attn_scalar": 256}
    config |= {"max_position_embeddings": 131_072, "hidden_activation": "gelu_pytorch_tanh", "attention_bias": False}
    config |= {"sliding_window_pattern": 6, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "tie_word_embeddings": True}
    config["final_logit_softcapping"] = None
    model = replace(model, config=config)
    assumed = ("head_dim", "num_attention_heads", "num_key_value_heads", "max_position_embeddings", "rms_norm_eps")
    assumed += ("hidden_activation", "attention_bias", "sliding_window_pattern", "rope_theta", "rope_local_base_freq")
    assumed += ("tie_word_embeddings", "query_pre_attn_scalar", "final_logit_softcapping", "attn_logit_softcapping")
    whole = wrapped_config("gemma3", without(config, *assumed))
    paths = (
        write_directory(model, tmp_path / "alone"),
        write_wrapped(model, tmp_path / "whole", "transformers 4", whole),
    )
    found = []
    for path in paths:
        with LLM(path, cache=F32, threads=2, context=64) as llm:
            found.append(llm.logits(model.prompt(20)).tobytes())
    assert found[0] == found[1]


def test_what_is_no_text_model_of_a_known_family_is_refused_in_a_line(tmp_path: Path) -> None:
    model = text_model("llama")
    for kind, text, said in (
        ("paligemma", {"model_type": "gemma"}, 'model type "paligemma" isn\'t one that kvist runs'),
        ("mistral3", {"model_type": "ministral3"}, 'model type "ministral3" isn\'t one that kvist runs'),
    ):
        config = wrapped_config(kind, {**model.config, **text})
        path = write_wrapped(model, tmp_path / kind, "transformers 4", config)
        with pytest.raises(UnsupportedError, match=said) as caught:
            LLM(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [5, {}, {"model_type": 7}, {"model_type": "llama"}, None])
def test_a_text_part_that_is_none_is_refused_in_a_line(text: object, tmp_path: Path) -> None:
    config = {"model_type": "llava", "text_config": text}
    path = write_wrapped(text_model("llama"), tmp_path / "whole", "transformers 4", config)
    with pytest.raises(KvistError) as caught:
        LLM(path, cache=F32, context=64)
    assert "\n" not in str(caught.value)


def test_tensors_of_another_layout_are_missed_by_name(tmp_path: Path) -> None:
    model = text_model("llama")
    path = write_directory(replace(model, config=model.config), tmp_path / "whole")
    (path / "config.json").write_text(json.dumps(wrapped_config("llava", {**model.config, "num_hidden_layers": 9})))
    with pytest.raises(CheckpointError, match=r'has no tensor "model\.layers\.\d'):
        LLM(path, cache=F32, context=64)


def test_every_kind_has_the_text_family_that_its_config_names() -> None:
    assert set(WRAPPED) <= set(WRAPPERS)
    for kind, family in WRAPPED.items():
        config = wrapped_config(kind, text_model(family).config)
        assert text_config(config, has_output=True)["model_type"] == family


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_the_names_that_transformers_5_gives_text_parts(kind: str) -> None:
    family = WRAPPED[kind]
    config = wrapped_config(kind, {**text_model(family).config, "model_type": f"{kind}_text"})
    assert text_config(config, has_output=True)["model_type"] == family


def test_closing_it_closes_the_files(tmp_path: Path) -> None:
    model = text_model("llama")
    path = write_wrapped(model, tmp_path / "whole", "transformers 4", wrapped_config("llava", model.config))
    with open_model(path) as files:
        assert files.num_left_out == 1
        assert files.checkpoint.raw("model.norm.weight").size == 4 * model.config["hidden_size"]
    with pytest.raises(AssertionError, match="after close"):
        files.checkpoint.raw("model.norm.weight")


def test_a_matrix_in_several_tensors_is_one_of_the_text_model(tmp_path: Path) -> None:
    """Whole numbers with a scale for each row, as compressed-tensors keeps them."""
    model = text_model("llama")
    numbers = wrapped_tensors(model, "transformers 4")
    name = "language_model.model.layers.0.self_attn.q_proj.weight"
    numbers[name] = np.full(numbers[name].shape, 3, np.int8)
    numbers[f"{name}_scale"] = np.full((len(numbers[name]), 1), 0.5, np.float32)
    config = wrapped_config("llava", model.config, quantization_config={"quant_method": "compressed-tensors"})
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(numbers, tmp_path / "model.safetensors")
    with open_model(tmp_path) as files:
        matrix = files.checkpoint.composed[name.removeprefix("language_model.")]
        assert matrix.info.name == "model.layers.0.self_attn.q_proj.weight"
        assert matrix.info == files.checkpoint.tensors[matrix.info.name]
        assert np.all(matrix.floats(np.arange(2)) == 1.5)
        assert files.num_left_out == 1
