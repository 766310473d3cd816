"""kvist on a case's directory, and what the oracle tests measured, printed at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from oracles.cases import F32, Case
from proof.measuring import measured, pytest_terminal_summary

from kvist import LLM

__all__ = ["llm", "measured", "pytest_terminal_summary"]


@pytest.fixture(scope="module")
def llm(case: Case) -> Iterator[LLM]:
    with LLM(case.path, cache=F32) as llm:
        yield llm
