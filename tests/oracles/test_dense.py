"""kvist against transformers on tiny random models of the dense families: logits, features put out, rope scalings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from oracles.fixed_rope import fix_rope
from oracles.huggingface import Oracle
from oracles.record_dense import rotation
from tiny.compare import TOLERANCE, row_errors
from tiny.dense import DENSE, NUM_MODELS, dense_model, dense_mutations
from tiny.models import TinyModel
from tiny.recorded_dense import PROMPT_TOKENS, ROTATIONS, ROWS, recorded_logits, recorded_models, recorded_rotation
from tiny.tensors import write_directory

from kvist import LLM, CacheSpec

MODELS = [dense_model(family, number) for family in DENSE for number in range(NUM_MODELS)]
F32 = CacheSpec(codec="f32")
LENGTHS = (1, 17, 100, 300)


@dataclass(frozen=True)
class Case:
    model: TinyModel
    path: Path
    oracle: Oracle


@pytest.fixture(scope="module", params=MODELS, ids=lambda model: model.name)
def case(request, tmp_path_factory) -> Case:
    path = write_directory(request.param, tmp_path_factory.mktemp(request.param.name))
    oracle = Oracle(path)
    fix_rope(oracle)
    return Case(request.param, path, oracle)


@pytest.fixture(scope="module")
def llm(case: Case) -> Iterator[LLM]:
    with LLM(case.path, cache=F32) as llm:
        yield llm


@pytest.mark.parametrize("length", LENGTHS)
def test_logits_of_every_position(case: Case, llm: LLM, length: int, measured) -> None:
    ids = case.model.prompt(length, f"prompt of {length}")
    error = row_errors(llm.logits(ids), case.oracle.logits(ids)).max()
    measured(case.model.family, "logits, worst row error", error)
    assert error < TOLERANCE


def test_every_feature_moves_the_logits(case: Case, tmp_path: Path, measured) -> None:
    ids = case.model.prompt(200)
    oracle = case.oracle.logits(ids)
    for feature, mutated in dense_mutations(case.model).items():
        with LLM(write_directory(mutated, tmp_path / feature), cache=F32) as llm:
            factor = row_errors(llm.logits(ids), oracle).max() / TOLERANCE
        measured(case.model.family, f"without {feature}, error / tolerance", factor)
        assert factor > 100, mutated.name


def test_what_transformers_itself_writes(case: Case, tmp_path: Path) -> None:
    case.oracle.model.save_pretrained(tmp_path)
    ids = case.model.prompt(40)
    with LLM(tmp_path, cache=F32) as llm:
        assert row_errors(llm.logits(ids), case.oracle.logits(ids)).max() < TOLERANCE


@pytest.mark.parametrize("model", recorded_models(), ids=lambda model: model.name)
def test_recorded_logits(model: TinyModel, tmp_path: Path) -> None:
    oracle = Oracle(write_directory(model, tmp_path))
    fix_rope(oracle)
    logits = oracle.logits(model.prompt(PROMPT_TOKENS))[list(ROWS)]
    assert row_errors(logits, recorded_logits(model)[1]).max() < TOLERANCE / 10


@pytest.mark.parametrize("name", ROTATIONS)
def test_recorded_rotations(name: str) -> None:
    frequencies, factor = rotation(name)
    assert np.allclose(frequencies, recorded_rotation(name)[0], rtol=1e-6, atol=0)
    assert factor == pytest.approx(recorded_rotation(name)[1], rel=1e-6)
