"""kvist and its lesson against transformers on tiny random models of every family, logits and greedy tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from oracles.cases import Case, cases, check_16_bits, check_features, check_logits, check_rewritten
from tiny.compare import TOLERANCE, count_near_ties, margins, row_errors
from tiny.lesson import lesson
from tiny.models import FAMILIES, NUM_MODELS, mutations, tiny_model

from kvist import LLM, SamplingParams
from kvist.reference import forward

FRESH = range(NUM_MODELS, NUM_MODELS + 6)  # not those that are recorded; six in a row have all head dims
LENGTHS = (1, 2, 15, 16, 17, 31, 64, 100, 200)
LONG = 600  # three spans of attention
GREEDY = SamplingParams(max_tokens=64, temperature=0, ignore_eos=True)

case = cases([tiny_model(family, number) for family in FAMILIES for number in FRESH])


def test_lesson_logits(case: Case, measured) -> None:
    ids = case.model.prompt(LENGTHS[-1])
    error = row_errors(forward(*lesson(case.model), ids), case.oracle.logits(ids)).max()
    measured(case.model.family, "lesson's logits, worst row error", error)
    assert error < TOLERANCE


@pytest.mark.parametrize("length", [*LENGTHS, LONG])
def test_logits_of_every_position(case: Case, llm: LLM, length: int, measured) -> None:
    check_logits(case, llm, length, measured)


@pytest.mark.parametrize("length", [1, 20, 250])
def test_greedy_tokens(case: Case, llm: LLM, length: int, measured) -> None:
    ids = case.model.prompt(length, f"greedy {length}")
    chosen = list(llm.generate(ids, GREEDY).token_ids)
    assert len(chosen) == GREEDY.max_tokens
    oracle = case.oracle.logits(ids + chosen[:-1])[length - 1 :]
    num_ties = count_near_ties(chosen, np.argmax(oracle, axis=-1).tolist(), margins(oracle))
    measured(case.model.family, "greedy tokens, near ties that differ", num_ties)
    if num_ties == 0 and length < 100:
        assert chosen == case.oracle.greedy(ids, GREEDY.max_tokens)


def test_every_feature_moves_the_logits(case: Case, tmp_path: Path, measured) -> None:
    check_features(case, mutations(case.model), LENGTHS[-1], tmp_path, measured)


def test_what_transformers_itself_writes(case: Case, tmp_path: Path) -> None:
    check_rewritten(case, tmp_path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
def test_16_bit_checkpoints(case: Case, tmp_path: Path, dtype: torch.dtype, measured) -> None:
    check_16_bits(case, tmp_path, dtype, measured)
