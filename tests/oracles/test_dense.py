"""kvist against transformers on tiny random models of the dense families: logits, features put out, rope scalings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from oracles.cases import F32, Case, cases, check_features, check_logits, check_recorded, check_rewritten
from oracles.fixed_rope import fixed_oracle
from oracles.record_dense import rotation
from tiny.compare import TOLERANCE, row_errors
from tiny.dense import DENSE, NUM_MODELS, ORIGINAL, dense_model, dense_mutations
from tiny.models import CONTEXT, TinyModel
from tiny.recorded_dense import PROMPT_TOKENS, ROTATIONS, ROWS, recorded_logits, recorded_models, recorded_rotation
from tiny.tensors import write_directory

from kvist import LLM

LENGTHS = (1, 17, 100, 300)
OPENED = [
    *(("phi3", number, context) for number in (0, 1) for context in (ORIGINAL, ORIGINAL + 1, 300)),
    *(("olmo", 3, context) for context in (300, 2 * CONTEXT)),
]
"""Models whose rotations look at a context, and what they are opened with."""

case = cases([dense_model(family, number) for family in DENSE for number in range(NUM_MODELS)], fixed_oracle)


@pytest.mark.parametrize("length", LENGTHS)
def test_logits_of_every_position(case: Case, llm: LLM, length: int, measured) -> None:
    check_logits(case, llm, length, measured)


def test_every_feature_moves_the_logits(case: Case, tmp_path: Path, measured) -> None:
    check_features(case, dense_mutations(case.model), 200, tmp_path, measured)


def test_what_transformers_itself_writes(case: Case, tmp_path: Path) -> None:
    check_rewritten(case, tmp_path)


@pytest.mark.filterwarnings("ignore::kvist.errors.ContextWarning")
@pytest.mark.parametrize(("family", "number", "context"), OPENED)
def test_logits_in_a_configured_context(family: str, number: int, context: int, tmp_path: Path, measured) -> None:
    model = dense_model(family, number)
    path = write_directory(model, tmp_path)
    ids = model.prompt(min(context, CONTEXT + 60))
    with LLM(path, cache=F32, context=context) as llm:
        error = row_errors(llm.logits(ids), fixed_oracle(path, context).logits(ids)).max()
    measured(family, "logits in a configured context, worst row error", error)
    assert error < TOLERANCE


@pytest.mark.parametrize("model", recorded_models(), ids=lambda model: model.name)
def test_recorded_logits(model: TinyModel, tmp_path: Path) -> None:
    oracle = fixed_oracle(write_directory(model, tmp_path))
    check_recorded(oracle, model, PROMPT_TOKENS, ROWS, recorded_logits(model)[1])


@pytest.mark.parametrize("name", ROTATIONS)
def test_recorded_rotations(name: str) -> None:
    frequencies, factor = rotation(name)
    assert np.allclose(frequencies, recorded_rotation(name)[0], rtol=1e-6, atol=0)
    assert factor == pytest.approx(recorded_rotation(name)[1], rel=1e-6)
