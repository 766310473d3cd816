"""kvist against llama.cpp on the same GGUF files: tiny random models of every family, f32 weights and f32 cache.

Both round every operation to f32 in an order of their own. Where a family has GELU, llama.cpp's is computed exactly
(``exact_gelu``): its own is looked up in 16 bits, and how far that moves logits is measured here, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from oracles_llamacpp.runtime import logits
from tiny.compare import TOLERANCE, row_errors
from tiny.in_llamacpp import EXACT_GELUS, PROMPT_TOKENS, ROWS, Case, cases, recorded, recorded_cases
from tiny.tensors import digest

from kvist import LLM, CacheSpec

F32 = CacheSpec(codec="f32")
TABLE_OF_GELU = 3e-3
"""What 16-bit GELU may move logits by, as a share of the row's largest. Measured: 4e-4 to 1.5e-3."""


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.model.name)
def test_logits(case: Case, tmp_path: Path, measured) -> None:
    family, path, ids = case.model.family, case.file(tmp_path), case.model.prompt(PROMPT_TOKENS)
    with LLM(path, cache=F32) as llm:
        found = llm.logits(ids)
    form = EXACT_GELUS.get(family)
    error = row_errors(found, logits(path, ids, gelu=form)).max()
    measured(family, "logits, worst row error", error)
    assert error < TOLERANCE
    if form is not None:
        with_table = row_errors(found, logits(path, ids)).max()
        measured(family, "logits, with llama.cpp's GELU", with_table)
        assert with_table < TABLE_OF_GELU


@pytest.mark.parametrize("case", recorded_cases(), ids=lambda case: case.model.name)
def test_recorded_logits(case: Case, tmp_path: Path) -> None:
    model = case.model
    assert recorded(model)[0] == digest(model)
    found = logits(case.file(tmp_path), model.prompt(PROMPT_TOKENS), gelu=EXACT_GELUS.get(model.family))
    assert row_errors(found[list(ROWS)], recorded(model)[1]).max() < TOLERANCE / 10
