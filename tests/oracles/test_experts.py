"""Models with experts against transformers, on tiny random models that aren't recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from oracles.cases import Case, cases, check_16_bits, check_features, check_logits, check_rewritten
from tiny.experts import EXPERT_FAMILIES, NUM_EXPERT_MODELS, expert_model, expert_mutations

from kvist import LLM

FRESH = range(NUM_EXPERT_MODELS, NUM_EXPERT_MODELS + 6)

case = cases([expert_model(family, number) for family in EXPERT_FAMILIES for number in FRESH])


@pytest.mark.parametrize("length", [1, 2, 17, 64, 200, 600])
def test_logits_of_every_position(case: Case, llm: LLM, length: int, measured) -> None:
    check_logits(case, llm, length, measured)


def test_every_feature_moves_the_logits(case: Case, tmp_path: Path, measured) -> None:
    past_the_widest_window = 150
    check_features(case, expert_mutations(case.model), past_the_widest_window, tmp_path, measured)


def test_what_transformers_itself_writes(case: Case, tmp_path: Path) -> None:
    check_rewritten(case, tmp_path)


def test_bf16_checkpoints(case: Case, tmp_path: Path, measured) -> None:
    check_16_bits(case, tmp_path, torch.bfloat16, measured)
