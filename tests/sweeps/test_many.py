"""Many requests in one engine: long searches for one that gets other bytes, on fakes and all tiny models."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine.test_many import STAGES
from hypothesis import given, settings
from hypothesis import strategies as st
from proof.cases import CASES, Case
from proof.compiled import compiled_stage, search
from proof.many import HOUSES, Arrival, House, Stage, arrivals, check_many


@settings(max_examples=5000)
@given(st.sampled_from(STAGES), HOUSES, st.lists(arrivals(70, 250), min_size=1, max_size=9))
def test_fakes(stage: Stage, house: House, coming: list[Arrival]) -> None:
    check_many(stage, house, coming)


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_compiled(case: Case, tmp_path: Path) -> None:
    stage = compiled_stage(case, tmp_path)
    search(stage, 400)
    for decoder in stage.decoders:
        decoder.close()
