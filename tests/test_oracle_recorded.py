"""The lesson against what transformers said of the same tiny models, recorded by ``oracles/record.py``."""

from __future__ import annotations

import numpy as np
import pytest
from tiny.compare import TOLERANCE, count_near_ties, row_errors
from tiny.lesson import lesson, lesson_config
from tiny.models import FAMILIES, HEAD_DIMS, TinyModel, mutations, tiny_model, tiny_models
from tiny.recorded import GREEDY_PROMPT_TOKENS, GREEDY_TOKENS, PROMPT_TOKENS, ROWS, data_file, recorded
from tiny.tensors import digest

from kvist.reference import forward, generate_cached

MODELS = tiny_models()
SOME = [tiny_model(family, number) for family in FAMILIES for number in range(4)]  # `make oracles` takes all
MUTATIONS = [(model, feature, mutated) for model in SOME for feature, mutated in mutations(model).items()]


@pytest.fixture(params=MODELS, ids=lambda model: model.name)
def model(request) -> TinyModel:
    return request.param


def test_weights_are_those_that_were_recorded(model: TinyModel) -> None:
    assert digest(model) == recorded(model).digest


def test_lesson_gives_the_oracles_logits(model: TinyModel) -> None:
    logits = forward(*lesson(model), model.prompt(PROMPT_TOKENS))
    assert row_errors(logits[list(ROWS)], recorded(model).logits).max() < TOLERANCE


def test_lesson_gives_the_oracles_tokens(model: TinyModel) -> None:
    oracle, start = recorded(model), model.prompt(PROMPT_TOKENS)[:GREEDY_PROMPT_TOKENS]
    expected = oracle.greedy.tolist()
    logits = forward(*lesson(model), start + expected[:-1])[len(start) - 1 :]
    num_ties = count_near_ties(np.argmax(logits, axis=-1).tolist(), expected, oracle.margin)
    assert num_ties > 0 or generate_cached(*lesson(model), start, GREEDY_TOKENS) == expected


@pytest.mark.parametrize("case", MUTATIONS, ids=lambda case: case[2].name)
def test_a_missing_feature_would_show(case: tuple[TinyModel, str, TinyModel]) -> None:
    model, _, mutated = case
    logits = forward(*lesson(mutated), model.prompt(PROMPT_TOKENS))
    assert row_errors(logits[list(ROWS)], recorded(model).logits).max() > 100 * TOLERANCE


def test_models_cover_what_they_are_for() -> None:
    for family in FAMILIES:
        configs = [lesson_config(model.config) for model in MODELS if model.family == family]
        assert {config.head_dim for config in configs} == set(HEAD_DIMS)
        assert {model.config["tie_word_embeddings"] for model in MODELS if model.family == family} == {True, False}
        if family != "gpt2":
            assert 1 in {config.num_kv_heads for config in configs}
            assert any(1 < config.num_kv_heads < config.num_heads for config in configs)
    features = {(model.family, feature) for model, feature, _ in MUTATIONS}
    assert features >= {("llama", name) for name in ("attention_bias", "mlp_bias", "rope_scaling", "tie")}
    assert features >= {
        ("mistral", "window"),
        ("qwen2", "window"),
        ("qwen3", "window"),
        ("qwen2", "bias"),
        ("qwen3", "qk_norm"),
    }
    assert {lesson_config(model.config).rope_ramp is None for model in MODELS if model.family == "llama"} == {
        True,
        False,
    }


def test_recordings_stay_small() -> None:
    assert sum(data_file(family).stat().st_size for family in FAMILIES) < 1_000_000
