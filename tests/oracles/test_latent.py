"""Latent attention against transformers on tiny random models: logits, what each feature moves, 16-bit weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from oracles.huggingface import Oracle
from tiny.compare import TOLERANCE, row_errors
from tiny.deepseek import FAMILIES, NUM_RECORDED, deepseek_model, deepseek_mutations
from tiny.latent_recorded import MODELS as RECORDED
from tiny.latent_recorded import PROMPT_TOKENS, ROWS, recorded_logits
from tiny.models import TinyModel
from tiny.tensors import write_directory

from kvist import LLM, CacheSpec

FRESH = [deepseek_model(family, NUM_RECORDED + number) for family in FAMILIES for number in range(3)]
F32 = CacheSpec(codec="f32")


@dataclass(frozen=True)
class Case:
    model: TinyModel
    path: Path
    oracle: Oracle


@pytest.fixture(scope="module", params=FRESH, ids=lambda model: model.name)
def case(request, tmp_path_factory) -> Case:
    path = write_directory(request.param, tmp_path_factory.mktemp(request.param.name))
    return Case(request.param, path, Oracle(path))


@pytest.fixture(scope="module")
def llm(case: Case) -> Iterator[LLM]:
    with LLM(case.path, cache=F32) as llm:
        yield llm


@pytest.mark.parametrize("length", [1, 2, 17, 100, 600])
def test_logits_of_every_position(case: Case, llm: LLM, length: int, measured) -> None:
    ids = case.model.prompt(length, f"prompt of {length}")
    error = row_errors(llm.logits(ids), case.oracle.logits(ids)).max()
    measured(case.model.family, "logits, worst row error", error)
    assert error < TOLERANCE


def test_every_feature_moves_the_logits(case: Case, tmp_path: Path, measured) -> None:
    ids = case.model.prompt(200)
    oracle = case.oracle.logits(ids)
    for feature, mutated in deepseek_mutations(case.model).items():
        with LLM(write_directory(mutated, tmp_path / feature), cache=F32) as llm:
            factor = row_errors(llm.logits(ids), oracle).max() / TOLERANCE
        measured(case.model.family, f"without {feature}, error / tolerance", factor)
        assert factor > 100, mutated.name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
def test_16_bit_checkpoints_that_transformers_writes(case: Case, tmp_path: Path, dtype: torch.dtype, measured) -> None:
    Oracle(case.path, dtype).model.save_pretrained(tmp_path)
    ids = case.model.prompt(40)
    with LLM(tmp_path, cache=F32) as llm:
        error = row_errors(llm.logits(ids), Oracle(tmp_path).logits(ids)).max()
    measured(case.model.family, "16-bit weights' logits, worst row error", error)
    assert error < TOLERANCE


@pytest.mark.parametrize("model", RECORDED, ids=lambda model: model.name)
def test_recorded_logits(model: TinyModel, tmp_path: Path) -> None:
    logits = Oracle(write_directory(model, tmp_path)).logits(model.prompt(PROMPT_TOKENS))
    assert row_errors(logits[list(ROWS)], recorded_logits(model)[1]).max() < TOLERANCE / 10
