"""The fast path against what transformers said of the tiny models (recorded), from directories and from GGUF files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tiny.compare import TOLERANCE, count_near_ties, row_errors
from tiny.gguf_file import write_gguf
from tiny.lesson import lesson_config, lesson_weights
from tiny.models import FAMILIES, TinyModel, mutations, tiny_model, tiny_models
from tiny.recorded import GREEDY_PROMPT_TOKENS, PROMPT_TOKENS, ROWS, recorded
from tiny.tensors import tensors, write_directory

from kvist import LLM, CacheSpec, SamplingParams
from kvist.reference import forward

F32 = CacheSpec(codec="f32")
# GGUF can't say which layers of a Qwen have a window: numbers 1 and 3 have none.
IN_GGUF = [tiny_model(family, number) for family in FAMILIES for number in (1, 3)] + [tiny_model("llama", 2)]


@pytest.fixture(scope="module", params=tiny_models(), ids=lambda model: model.name)
def model(request) -> TinyModel:
    return request.param


@pytest.fixture(scope="module")
def llm(model: TinyModel, tmp_path_factory) -> Iterator[LLM]:
    with LLM(write_directory(model, tmp_path_factory.mktemp(model.name)), cache=F32) as llm:
        yield llm


def test_logits(model: TinyModel, llm: LLM) -> None:
    logits = llm.logits(model.prompt(PROMPT_TOKENS))
    assert logits.dtype == np.float32
    assert row_errors(logits[list(ROWS)], recorded(model).logits).max() < TOLERANCE


def test_greedy_tokens(model: TinyModel, llm: LLM) -> None:
    oracle, start = recorded(model), model.prompt(PROMPT_TOKENS)[:GREEDY_PROMPT_TOKENS]
    expected = oracle.greedy.tolist()
    logits = llm.logits(start + expected[:-1])[len(start) - 1 :]
    num_ties = count_near_ties(np.argmax(logits, axis=-1).tolist(), expected, oracle.margin)
    params = SamplingParams(max_tokens=len(expected), temperature=0, ignore_eos=True)
    assert num_ties > 0 or list(llm.generate(start, params).token_ids) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_a_missing_feature_would_show(family: str, tmp_path: Path) -> None:
    """Also that each switch of a config reaches the kernels; `make oracles` takes more models."""
    for number in (1, 2):
        model = tiny_model(family, number)
        for feature, mutated in mutations(model).items():
            with LLM(write_directory(mutated, tmp_path / mutated.name), cache=F32) as llm:
                logits = llm.logits(model.prompt(PROMPT_TOKENS))
            assert row_errors(logits[list(ROWS)], recorded(model).logits).max() > 100 * TOLERANCE, (model.name, feature)


def test_names_of_the_first_gpt2_files(tmp_path: Path) -> None:
    """They lack the prefix, and hold each layer's causal mask as a tensor."""
    model = tiny_model("gpt2", 1)
    write_directory(model, tmp_path)
    named = {name.removeprefix("transformer."): array for name, array in tensors(model).items()}
    mask = np.tril(np.ones((1, 1, 64, 64), np.float32))
    masks = {f"h.{number}.attn.bias": mask for number in range(model.config["n_layer"])}
    save_file(named | masks, tmp_path / "model.safetensors")
    with LLM(tmp_path, cache=F32) as llm:
        logits = llm.logits(model.prompt(PROMPT_TOKENS))
    assert row_errors(logits[list(ROWS)], recorded(model).logits).max() < TOLERANCE


@pytest.mark.parametrize("model", IN_GGUF, ids=lambda model: model.name, scope="function")
def test_logits_from_a_gguf_file(model: TinyModel, tmp_path: Path) -> None:
    write_gguf(model, tmp_path / "model.gguf")
    with LLM(tmp_path / "model.gguf", cache=F32) as llm:
        logits = llm.logits(model.prompt(PROMPT_TOKENS))
    assert row_errors(logits[list(ROWS)], recorded(model).logits).max() < TOLERANCE


@pytest.mark.parametrize("weight_type", ["q8_0", "q4_0", "q4_1", "f16", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_weights_widened_at_load(family: str, weight_type: str, tmp_path: Path) -> None:
    """The lesson gets the numbers that the gguf package's dequantiser finds in the file."""
    model = tiny_model(family, 3)
    found = write_gguf(model, tmp_path / "model.gguf", weight_type)
    ids = model.prompt(50)
    oracle = forward(lesson_weights(model.config, found), lesson_config(model.config), ids)
    with LLM(tmp_path / "model.gguf", weights="f32", cache=F32) as llm:
        assert row_errors(llm.logits(ids), oracle).max() < TOLERANCE
