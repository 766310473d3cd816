"""What ``make test`` compares with is what this transformers says."""

from __future__ import annotations

from pathlib import Path

import pytest
from oracles.huggingface import Oracle
from tiny.compare import TOLERANCE, row_errors
from tiny.models import tiny_models
from tiny.recorded import PROMPT_TOKENS, ROWS, recorded
from tiny.tensors import write_directory


@pytest.mark.parametrize("model", tiny_models(), ids=lambda model: model.name)
def test_recorded_logits(model, tmp_path: Path, measured) -> None:
    logits = Oracle(write_directory(model, tmp_path)).logits(model.prompt(PROMPT_TOKENS))
    error = row_errors(logits[list(ROWS)], recorded(model).logits).max()
    measured(model.family, "recorded logits, worst row error", error)
    assert error < TOLERANCE / 10
