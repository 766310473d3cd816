"""Embedding and output matrices as files have them: tied, stored once, twice or under one name, with spare rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from proof.cases import CASES
from safetensors.numpy import save_file
from tiny.tensors import tensors

from kvist.checkpoint.catalog import open_checkpoint
from kvist.errors import CheckpointError
from kvist.model.decoder import load_decoder

MODEL = CASES["f32"].model
EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
Named = dict[str, np.ndarray]


def packed(path: Path, named: Named, *, is_tied: bool, metadata: Mapping[str, str] | None = None) -> bytes:
    """What is loaded of a directory with these tensors."""
    (path / "config.json").write_text(json.dumps({**MODEL.config, "tie_word_embeddings": is_tied}))
    save_file(named, path / "model.safetensors", metadata=dict(metadata or {}))
    checkpoint = open_checkpoint(path)
    try:
        decoder = load_decoder(checkpoint, threads=1)
    finally:
        checkpoint.close()
    decoder.close()
    return decoder.weights.arena.tobytes()


@pytest.fixture
def named() -> Named:
    found = dict(tensors(MODEL))
    found.pop(OUTPUT, None)
    return found


def longer(array: np.ndarray) -> np.ndarray:
    return np.concatenate([array, np.full((5, array.shape[1]), 7, array.dtype)])


def test_tied_weights_may_be_stored_once_twice_or_under_either_name(tmp_path: Path, named: Named) -> None:
    once = packed(tmp_path, named, is_tied=True)
    assert packed(tmp_path, {**named, OUTPUT: named[EMBEDDING].copy()}, is_tied=True) == once
    under_the_other = {OUTPUT if name == EMBEDDING else name: array for name, array in named.items()}
    assert packed(tmp_path, under_the_other, is_tied=True, metadata={EMBEDDING: OUTPUT}) == once
    with pytest.raises(CheckpointError, match=f'has no tensor "{EMBEDDING}"'):
        packed(tmp_path, under_the_other, is_tied=True)


def test_weights_that_are_not_tied_have_to_be_there(tmp_path: Path, named: Named) -> None:
    with pytest.raises(CheckpointError, match=f'has no tensor "{OUTPUT}"; it is incomplete'):
        packed(tmp_path, named, is_tied=False)


@pytest.mark.parametrize("is_tied", [True, False])
def test_rows_behind_the_vocabulary_are_left_out(tmp_path: Path, named: Named, is_tied: bool) -> None:
    whole = {**named, **({} if is_tied else {OUTPUT: named[EMBEDDING] + 1})}
    expected = packed(tmp_path, whole, is_tied=is_tied)
    padded = {name: longer(array) if name in (EMBEDDING, OUTPUT) else array for name, array in whole.items()}
    assert packed(tmp_path, padded, is_tied=is_tied) == expected


def test_rows_that_are_missing_are_not(tmp_path: Path, named: Named) -> None:
    rows, width = named[EMBEDDING].shape
    with pytest.raises(
        CheckpointError, match=rf"has shape \({rows - 1}, {width}\); its config says \({rows}, {width}\)"
    ):
        packed(tmp_path, {**named, EMBEDDING: named[EMBEDDING][:-1]}, is_tied=True)


@pytest.mark.parametrize("name", [EMBEDDING, "model.norm.weight", "model.layers.0.mlp.down_proj.weight"])
def test_no_other_size_may_differ(tmp_path: Path, named: Named, name: str) -> None:
    array = named[name]
    wider = np.concatenate([array, array], axis=array.ndim - 1 if name == EMBEDDING else 0)
    with pytest.raises(CheckpointError, match="has shape"):
        packed(tmp_path, {**named, name: wider}, is_tied=True)
