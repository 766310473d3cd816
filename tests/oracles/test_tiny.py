"""kvist and its lesson against transformers on tiny random models of every family, logits and greedy tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from oracles.huggingface import Oracle
from tiny.compare import TOLERANCE, count_near_ties, margins, row_errors
from tiny.lesson import lesson
from tiny.models import FAMILIES, NUM_MODELS, TinyModel, mutations, tiny_model
from tiny.tensors import write_directory

from kvist import LLM, CacheSpec, SamplingParams
from kvist.reference import forward

FRESH = range(NUM_MODELS, NUM_MODELS + 6)  # not those that are recorded; six in a row have all head dims
MODELS = [tiny_model(family, number) for family in FAMILIES for number in FRESH]
LENGTHS = (1, 2, 15, 16, 17, 31, 64, 100, 200)
LONG = 600  # three spans of attention
F32 = CacheSpec(codec="f32")
GREEDY = SamplingParams(max_tokens=64, temperature=0, ignore_eos=True)


@dataclass(frozen=True)
class Case:
    model: TinyModel
    path: Path
    oracle: Oracle


@pytest.fixture(scope="module", params=MODELS, ids=lambda model: model.name)
def case(request, tmp_path_factory) -> Case:
    path = write_directory(request.param, tmp_path_factory.mktemp(request.param.name))
    return Case(request.param, path, Oracle(path))


@pytest.fixture(scope="module")
def llm(case: Case) -> Iterator[LLM]:
    with LLM(case.path, cache=F32) as llm:
        yield llm


def test_lesson_logits(case: Case, measured) -> None:
    ids = case.model.prompt(LENGTHS[-1])
    error = row_errors(forward(*lesson(case.model), ids), case.oracle.logits(ids)).max()
    measured(case.model.family, "lesson's logits, worst row error", error)
    assert error < TOLERANCE


@pytest.mark.parametrize("length", [*LENGTHS, LONG])
def test_logits_of_every_position(case: Case, llm: LLM, length: int, measured) -> None:
    ids = case.model.prompt(length, f"prompt of {length}")
    error = row_errors(llm.logits(ids), case.oracle.logits(ids)).max()
    measured(case.model.family, "logits, worst row error", error)
    assert error < TOLERANCE


@pytest.mark.parametrize("length", [1, 20, 250])
def test_greedy_tokens(case: Case, llm: LLM, length: int, measured) -> None:
    ids = case.model.prompt(length, f"greedy {length}")
    chosen = list(llm.generate(ids, GREEDY).token_ids)
    assert len(chosen) == GREEDY.max_tokens
    oracle = case.oracle.logits(ids + chosen[:-1])[length - 1 :]
    num_ties = count_near_ties(chosen, np.argmax(oracle, axis=-1).tolist(), margins(oracle))
    measured(case.model.family, "greedy tokens, near ties that differ", num_ties)
    if num_ties == 0 and length < 100:
        assert chosen == case.oracle.greedy(ids, GREEDY.max_tokens)


def test_every_feature_moves_the_logits(case: Case, tmp_path: Path, measured) -> None:
    ids = case.model.prompt(LENGTHS[-1])
    oracle = case.oracle.logits(ids)
    for feature, mutated in mutations(case.model).items():
        with LLM(write_directory(mutated, tmp_path / feature), cache=F32) as llm:
            factor = row_errors(llm.logits(ids), oracle).max() / TOLERANCE
        measured(case.model.family, f"without {feature}, error / tolerance", factor)
        assert factor > 100, mutated.name


def test_what_transformers_itself_writes(case: Case, tmp_path: Path) -> None:
    """Its own config keys, and weights in several files with an index."""
    case.oracle.model.save_pretrained(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    ids = case.model.prompt(40)
    with LLM(tmp_path, cache=F32) as llm:
        assert row_errors(llm.logits(ids), case.oracle.logits(ids)).max() < TOLERANCE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
def test_16_bit_checkpoints(case: Case, tmp_path: Path, dtype: torch.dtype, measured) -> None:
    """The oracle widens the same 16-bit weights to float32."""
    Oracle(case.path, dtype).model.save_pretrained(tmp_path)
    ids = case.model.prompt(40)
    with LLM(tmp_path, cache=F32) as llm:
        error = row_errors(llm.logits(ids), Oracle(tmp_path).logits(ids)).max()
    measured(case.model.family, "16-bit weights' logits, worst row error", error)
    assert error < TOLERANCE
