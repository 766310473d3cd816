"""Many requests in one engine on compiled models: the bytes of the logits, on one thread and two (``proof.many``)."""

from __future__ import annotations

from pathlib import Path

import pytest
from proof.cases import CASES
from proof.compiled import compiled_stage
from proof.many import search


@pytest.mark.parametrize("name", ["q4_1", "mixed", "window", "codecs"])
def test_each_gets_what_it_gets_alone(name: str, tmp_path: Path) -> None:
    stage = compiled_stage(CASES[name], tmp_path)
    search(stage, 30)
    for decoder in stage.decoders:
        decoder.close()
