"""Many requests in one engine: long searches for one that gets other bytes, on fakes and all tiny models."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine.test_many import STAGES
from proof.cases import CASES, Case
from proof.compiled import compiled_stage
from proof.many import Stage, search


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_fakes(stage: Stage) -> None:
    search(stage, 1200, most_arrivals=9, most_tokens=20)


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_compiled(case: Case, tmp_path: Path) -> None:
    stage = compiled_stage(case, tmp_path)
    search(stage, 400)
    for decoder in stage.decoders:
        decoder.close()
