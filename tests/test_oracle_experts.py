"""Models with experts against what transformers said of them (recorded), from directories and from GGUF files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tiny.compare import TOLERANCE, count_near_ties, row_errors
from tiny.experts import EXPERT_FAMILIES, expert_model, expert_models, expert_mutations
from tiny.gguf_file import write_gguf
from tiny.models import TinyModel
from tiny.recorded import GREEDY_PROMPT_TOKENS, PROMPT_TOKENS, ROWS, data_file, recorded
from tiny.tensors import digest, write_directory

from kvist import LLM, CacheSpec

F32 = CacheSpec(codec="f32")


@pytest.fixture(scope="module", params=expert_models(), ids=lambda model: model.name)
def model(request) -> TinyModel:
    return request.param


@pytest.fixture(scope="module")
def llm(model: TinyModel, tmp_path_factory) -> Iterator[LLM]:
    with LLM(write_directory(model, tmp_path_factory.mktemp(model.name)), cache=F32) as llm:
        yield llm


def test_weights_are_those_that_were_recorded(model: TinyModel) -> None:
    assert digest(model) == recorded(model).digest


def test_logits(model: TinyModel, llm: LLM) -> None:
    logits = llm.logits(model.prompt(PROMPT_TOKENS))
    assert row_errors(logits[list(ROWS)], recorded(model).logits).max() < TOLERANCE


def test_greedy_tokens(model: TinyModel, llm: LLM) -> None:
    oracle, start = recorded(model), model.prompt(PROMPT_TOKENS)[:GREEDY_PROMPT_TOKENS]
    expected = oracle.greedy.tolist()
    logits = llm.logits(start + expected[:-1])[len(start) - 1 :]
    count_near_ties(np.argmax(logits, axis=-1).tolist(), expected, oracle.margin)


def in_gguf(model: TinyModel) -> bool:
    config = model.config
    family = config["model_type"]
    if config.get("norm_topk_prob", family == "qwen3_moe") != (family == "qwen3_moe"):
        return False  # what isn't the family's own norm
    return config.get("decoder_sparse_step", 1) == 1 and not config.get("mlp_only_layers")


SAID = [model for model in expert_models() if in_gguf(model)]


def test_every_family_has_a_model_that_gguf_can_say() -> None:
    assert {model.config["model_type"] for model in SAID} == set(EXPERT_FAMILIES)


@pytest.mark.parametrize("model", SAID, ids=lambda model: model.name)
def test_from_gguf(model: TinyModel, tmp_path: Path) -> None:
    write_gguf(model, tmp_path / "model.gguf")
    with LLM(tmp_path / "model.gguf", cache=F32) as llm:
        logits = llm.logits(model.prompt(PROMPT_TOKENS))
    assert row_errors(logits[list(ROWS)], recorded(model).logits).max() < TOLERANCE


@pytest.mark.parametrize("family", EXPERT_FAMILIES)
def test_a_missing_feature_would_show(family: str, tmp_path: Path) -> None:
    for number in (0, 2):
        model = expert_model(family, number)
        for feature, mutated in expert_mutations(model).items():
            with LLM(write_directory(mutated, tmp_path / mutated.name), cache=F32) as llm:
                logits = llm.logits(model.prompt(PROMPT_TOKENS))
            assert row_errors(logits[list(ROWS)], recorded(model).logits).max() > 100 * TOLERANCE, (model.name, feature)


def test_recordings_stay_small() -> None:
    assert all(data_file(family).stat().st_size < 60_000 for family in EXPERT_FAMILIES)
