"""A tiny model in a directory beside its oracle, and what is checked of every family's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles.huggingface import Oracle
from tiny.compare import TOLERANCE, row_errors
from tiny.models import TinyModel
from tiny.tensors import write_directory

from kvist import LLM, CacheSpec

F32 = CacheSpec(codec="f32")
MOVED = 100
"""How many tolerances a feature that is put out has to move the logits at least."""

Measured = Callable[[str, str, float], None]


@dataclass(frozen=True)
class Case:
    model: TinyModel
    path: Path
    oracle: Oracle


def cases(models: Sequence[TinyModel], open_oracle: Callable[[Path], Oracle] = Oracle) -> Any:
    """Return a module's fixture ``case``, with one of ``models`` at a time; ``llm`` is kvist on the same directory."""

    @pytest.fixture(scope="module", params=models, ids=lambda model: model.name)
    def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
        path = write_directory(request.param, tmp_path_factory.mktemp(request.param.name))
        return Case(request.param, path, open_oracle(path))

    return case


def check_logits(case: Case, llm: LLM, length: int, measured: Measured) -> None:
    """Check every position's logits of a prompt of ``length`` tokens."""
    ids = case.model.prompt(length, f"prompt of {length}")
    error = row_errors(llm.logits(ids), case.oracle.logits(ids)).max()
    measured(case.model.family, "logits, worst row error", error)
    assert error < TOLERANCE


def check_features(
    case: Case, mutations: Mapping[str, TinyModel], num_tokens: int, path: Path, measured: Measured
) -> None:
    """Check that logits are far from the oracle's where any feature is put out: the comparison would show it."""
    ids = case.model.prompt(num_tokens)
    oracle = case.oracle.logits(ids)
    for feature, mutated in mutations.items():
        with LLM(write_directory(mutated, path / feature), cache=F32) as llm:
            factor = row_errors(llm.logits(ids), oracle).max() / TOLERANCE
        measured(case.model.family, f"without {feature}, error / tolerance", factor)
        assert factor > MOVED, mutated.name


def check_rewritten(case: Case, path: Path) -> None:
    """Check the directory that transformers itself writes: its own config keys, in several files with an index."""
    case.oracle.model.save_pretrained(path, max_shard_size="50KB")
    assert len(list(path.glob("*.safetensors"))) > 1
    ids = case.model.prompt(40)
    with LLM(path, cache=F32) as llm:
        assert row_errors(llm.logits(ids), case.oracle.logits(ids)).max() < TOLERANCE


def check_16_bits(case: Case, path: Path, dtype: torch.dtype, measured: Measured) -> None:
    """Check a checkpoint in 16 bits; the oracle widens the same weights to float32."""
    Oracle(case.path, dtype).model.save_pretrained(path)
    ids = case.model.prompt(40)
    with LLM(path, cache=F32) as llm:
        error = row_errors(llm.logits(ids), Oracle(path).logits(ids)).max()
    measured(case.model.family, "16-bit weights' logits, worst row error", error)
    assert error < TOLERANCE


def check_recorded(oracle: Oracle, model: TinyModel, num_tokens: int, rows: Sequence[int], logits: Any) -> None:
    """Check that the oracle still says what is recorded of ``rows`` of a prompt of ``num_tokens``."""
    found = oracle.logits(model.prompt(num_tokens))[list(rows)]
    assert row_errors(found, logits).max() < TOLERANCE / 10
