"""Models with experts against transformers, on tiny random models that aren't recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from oracles.huggingface import Oracle
from tiny.compare import TOLERANCE, row_errors
from tiny.experts import EXPERT_FAMILIES, NUM_EXPERT_MODELS, expert_model, expert_mutations
from tiny.models import TinyModel
from tiny.tensors import write_directory

from kvist import LLM, CacheSpec

FRESH = range(NUM_EXPERT_MODELS, NUM_EXPERT_MODELS + 6)
MODELS = [expert_model(family, number) for family in EXPERT_FAMILIES for number in FRESH]
F32 = CacheSpec(codec="f32")


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


@pytest.mark.parametrize("length", [1, 2, 17, 64, 200, 600])
def test_logits_of_every_position(case: Case, llm: LLM, length: int, measured) -> None:
    ids = case.model.prompt(length, f"prompt of {length}")
    error = row_errors(llm.logits(ids), case.oracle.logits(ids)).max()
    measured(case.model.family, "logits, worst row error", error)
    assert error < TOLERANCE


def test_every_feature_moves_the_logits(case: Case, tmp_path: Path, measured) -> None:
    ids = case.model.prompt(150)  # past the widest window
    oracle = case.oracle.logits(ids)
    for feature, mutated in expert_mutations(case.model).items():
        with LLM(write_directory(mutated, tmp_path / feature), cache=F32) as llm:
            factor = row_errors(llm.logits(ids), oracle).max() / TOLERANCE
        measured(case.model.family, f"without {feature}, error / tolerance", factor)
        assert factor > 100, mutated.name


def test_what_transformers_itself_writes(case: Case, tmp_path: Path) -> None:
    case.oracle.model.save_pretrained(tmp_path, max_shard_size="50KB")
    ids = case.model.prompt(40)
    with LLM(tmp_path, cache=F32) as llm:
        assert row_errors(llm.logits(ids), case.oracle.logits(ids)).max() < TOLERANCE


def test_bf16_checkpoints(case: Case, tmp_path: Path, measured) -> None:
    """The oracle widens the same 16-bit weights to float32."""
    Oracle(case.path, torch.bfloat16).model.save_pretrained(tmp_path)
    ids = case.model.prompt(40)
    with LLM(tmp_path, cache=F32) as llm:
        error = row_errors(llm.logits(ids), Oracle(tmp_path).logits(ids)).max()
    measured(case.model.family, "bf16 weights' logits, worst row error", error)
    assert error < TOLERANCE
