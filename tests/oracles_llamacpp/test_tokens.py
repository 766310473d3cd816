"""llama.cpp, asked afresh, gives the ids that are recorded, which tests/checkpoint compares kvist's with."""

from __future__ import annotations

import json

import pytest
from oracles_llamacpp.record_tokens import OUTPUT, TEXTS, record_smollm2, record_uncut

RECORDED = json.loads(OUTPUT.read_text())


def test_the_recorded_texts_are_those_of_the_script() -> None:
    assert RECORDED["texts"] == TEXTS


@pytest.mark.parametrize("key", ["model", "pieces_sha256", "with_special", "plain", "decoded"])
def test_smollm2(key: str) -> None:
    assert record_smollm2()[key] == RECORDED["smollm2"][key]


def test_pretokenizers() -> None:
    """With the recorded vocabulary, not one trained anew: another version of the library may train otherwise."""
    fresh = record_uncut(RECORDED["uncut"]["tokens"], RECORDED["uncut"]["merges"])
    for pre, ids in fresh["by_pre"].items():
        assert ids == RECORDED["uncut"]["by_pre"][pre], pre
