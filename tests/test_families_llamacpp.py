"""A GGUF file of every family gives what llama.cpp gives for the same file.

llama.cpp's logits are recorded (tests/oracles_llamacpp/record_families.py), with f32 weights and an f32 cache.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny.compare import TOLERANCE, row_errors
from tiny.in_llamacpp import FILE, PROMPT_TOKENS, ROWS, Case, recorded, recorded_cases
from tiny.tensors import digest

from kvist import LLM, CacheSpec
from kvist.checkpoint.gguf_config import ARCHITECTURES


@pytest.mark.parametrize("case", recorded_cases(), ids=lambda case: case.model.name)
def test_logits_are_llamacpps(case: Case, tmp_path: Path) -> None:
    model = case.model
    assert recorded(model)[0] == digest(model)
    with LLM(case.file(tmp_path), cache=CacheSpec(codec="f32")) as llm:
        logits = llm.logits(model.prompt(PROMPT_TOKENS))
    assert row_errors(logits[list(ROWS)], recorded(model)[1]).max() < TOLERANCE


def test_every_architecture_is_recorded(tmp_path: Path) -> None:
    """(llama has mistral and mixtral besides, deepseek2 both versions.)"""
    assert len(recorded_cases()) == len(ARCHITECTURES) + 3


def test_recordings_stay_small() -> None:
    assert FILE.stat().st_size < 60_000
