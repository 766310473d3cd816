"""The real model: SmolLM2-135M, its 4-bit weights dequantised to float32, against transformers on the same numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from oracles.huggingface import Oracle
from oracles.smollm2 import write_huggingface
from safetensors.numpy import load_file
from tiny.compare import TOLERANCE, count_near_ties, margins, row_errors
from tiny.lesson import lesson_config, lesson_weights

from kvist import LLM, CacheSpec, SamplingParams
from kvist.checkpoint.catalog import open_checkpoint
from kvist.reference import forward

TEXTS = (
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "Once upon a time, in a village by the sea, there lived an old fisherman who " * 12,
)
GREEDY = SamplingParams(max_tokens=64, temperature=0, ignore_eos=True)
F32 = CacheSpec(codec="f32")


@pytest.fixture(scope="module")
def gguf_path() -> Path:
    checkpoint = open_checkpoint("smollm2-135m")
    checkpoint.close()
    return checkpoint.path


@pytest.fixture(scope="module")
def directory(gguf_path: Path, tmp_path_factory) -> Path:
    return write_huggingface(gguf_path, tmp_path_factory.mktemp("smollm2"))


@pytest.fixture(scope="module")
def oracle(directory: Path) -> Oracle:
    return Oracle(directory)


@pytest.fixture(scope="module", params=["gguf", "directory"])
def llm(request, gguf_path: Path, directory: Path) -> Iterator[LLM]:
    """Dequantised by kvist as it loads the GGUF file, and by the gguf package."""
    where = {"model": gguf_path, "weights": "f32"} if request.param == "gguf" else {"model": directory}
    with LLM(**where, cache=F32, context=1024) as llm:
        yield llm


@pytest.fixture(scope="module")
def prompts(gguf_path: Path) -> list[list[int]]:
    with LLM(gguf_path, context=64) as llm:
        return [llm.tokenizer.encode(text) for text in TEXTS]


def test_logits(llm: LLM, oracle: Oracle, prompts: list[list[int]], measured) -> None:
    for ids in prompts:
        error = row_errors(llm.logits(ids), oracle.logits(ids)).max()
        measured("smollm2", "logits, worst row error", error)
        assert error < TOLERANCE


def test_lesson_logits(directory: Path, oracle: Oracle, prompts: list[list[int]], measured) -> None:
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    weights = lesson_weights(config, load_file(directory / "model.safetensors"))
    for ids in prompts:
        error = row_errors(forward(weights, lesson_config(config), ids), oracle.logits(ids)).max()
        measured("smollm2", "lesson's logits, worst row error", error)
        assert error < TOLERANCE


def test_greedy_tokens(llm: LLM, oracle: Oracle, prompts: list[list[int]], measured) -> None:
    for ids in prompts:
        chosen = list(llm.generate(ids, GREEDY).token_ids)
        rows = oracle.logits(ids + chosen[:-1])[len(ids) - 1 :]
        num_ties = count_near_ties(chosen, np.argmax(rows, axis=-1).tolist(), margins(rows))
        measured("smollm2", "greedy tokens, near ties that differ", num_ties)


def test_4_bit_weights_with_8_bit_activations_stay_close(
    gguf_path: Path, oracle: Oracle, prompts: list[list[int]], measured
) -> None:
    """As the file is run by default: not the oracle's arithmetic, so held to equal choices, not to a tolerance."""
    with LLM(gguf_path, context=1024) as llm:
        logits = np.concatenate([llm.logits(ids) for ids in prompts])
    rows = np.concatenate([oracle.logits(ids) for ids in prompts])
    measured("smollm2", "4-bit x 8-bit logits, worst row error", row_errors(logits, rows).max())
    agreement = np.mean(np.argmax(logits, axis=-1) == np.argmax(rows, axis=-1))
    measured("smollm2", "4-bit x 8-bit, share of equal choices", agreement)
    assert agreement > 0.9
