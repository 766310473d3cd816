"""Latent attention against transformers on tiny random models: logits, what each feature moves, 16-bit weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from oracles.cases import Case, cases, check_16_bits, check_features, check_logits, check_recorded
from oracles.huggingface import Oracle
from tiny.deepseek import FAMILIES, NUM_RECORDED, deepseek_model, deepseek_mutations
from tiny.latent_recorded import MODELS as RECORDED
from tiny.latent_recorded import PROMPT_TOKENS, ROWS, recorded_logits
from tiny.models import TinyModel
from tiny.tensors import write_directory

from kvist import LLM

case = cases([deepseek_model(family, NUM_RECORDED + number) for family in FAMILIES for number in range(3)])


@pytest.mark.parametrize("length", [1, 2, 17, 100, 600])
def test_logits_of_every_position(case: Case, llm: LLM, length: int, measured) -> None:
    check_logits(case, llm, length, measured)


def test_every_feature_moves_the_logits(case: Case, tmp_path: Path, measured) -> None:
    check_features(case, deepseek_mutations(case.model), 200, tmp_path, measured)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
def test_16_bit_checkpoints_that_transformers_writes(case: Case, tmp_path: Path, dtype: torch.dtype, measured) -> None:
    check_16_bits(case, tmp_path, dtype, measured)


@pytest.mark.parametrize("model", RECORDED, ids=lambda model: model.name)
def test_recorded_logits(model: TinyModel, tmp_path: Path) -> None:
    oracle = Oracle(write_directory(model, tmp_path))
    check_recorded(oracle, model, PROMPT_TOKENS, ROWS, recorded_logits(model)[1])
