"""Files made by llama.cpp's quantiser: every type's numbers, products and whole passes against llama.cpp's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from oracles_llamacpp.record_weights import BLOCKS_FILE, block_types, numbers_of, recorded_arrays
from oracles_llamacpp.runtime import logits
from oracles_llamacpp.wide_llama import FTYPES, LLAMA, MIXTRAL_OF_ALL, write_as
from tiny.blocks import unpacked
from tiny.compare import TOLERANCE, row_errors
from tiny.held import check_type
from tiny.stream import Stream

from kvist import LLM, CacheSpec
from kvist.checkpoint.gguf import GgufFile
from kvist.model.kept import AS_IT_IS, CODES_AS_Q8, EXACT_AS_Q8, ROUNDED_TO_Q8

NUM_ROWS = 33
F32 = CacheSpec("f32")
INT8_INPUTS = 0.15
"""What int8 activations may move of logits near 1 in a random model; a matrix of zeros moves them by more than 0.5."""


@pytest.fixture(scope="module", params=FTYPES)
def made(request, tmp_path_factory) -> tuple[Path, Path]:
    return write_as(request.param, tmp_path_factory.mktemp(request.param))


def test_numbers_and_products(made: tuple[Path, Path]) -> None:
    file, wide = GgufFile(made[0]), GgufFile(made[1])
    for weight_type, name in block_types(file).items():
        columns = file.tensors[name].shape[-1]
        raw = file.raw(name).reshape(-1, len(file.raw(name)) * columns // np.prod(file.tensors[name].shape))
        blocks = unpacked(weight_type, raw[:NUM_ROWS], NUM_ROWS, columns)
        theirs = numbers_of(wide, name)[:NUM_ROWS]
        assert np.abs(blocks.values - theirs).max() <= 2.0**-22 * np.abs(theirs).max(), weight_type
        check_type(blocks, Stream(1, weight_type).normal((3, columns)))


def test_logits_are_those_of_the_numbers(made: tuple[Path, Path], measured) -> None:
    """kvist's with every number in f32, and llama.cpp's of what its own dequantiser gives."""
    ids = LLAMA.prompt(60)
    expected = logits(made[1], ids)
    with LLM(made[0], cache=F32, weights="f32") as llm:
        error = row_errors(llm.logits(ids), expected).max()
    measured("all weight types", "logits in f32, worst row error", error)
    assert error < TOLERANCE


def test_logits_with_int8_inputs(made: tuple[Path, Path], measured, tmp_path: Path) -> None:
    """Of experts that are nearly as likely int8 may choose the other, whatever weights are stored as, and that row's
    logits are another expert's: so here every token takes all of them. Who chooses is compared in f32, above.
    """
    if made[0].stem == "MXFP4_MOE":
        made = write_as("MXFP4_MOE", tmp_path, MIXTRAL_OF_ALL)
    ids = LLAMA.prompt(60)
    expected = logits(made[1], ids)
    with LLM(made[0], cache=F32) as llm:
        error = row_errors(llm.logits(ids), expected).max()
    measured("all weight types", "logits as loaded, worst row error", error)
    measured(
        "all weight types", "llama.cpp's as loaded, worst row error", row_errors(logits(made[0], ids), expected).max()
    )
    assert error < INT8_INPUTS


def test_recorded_blocks() -> None:
    fresh = recorded_arrays()
    with np.load(BLOCKS_FILE, allow_pickle=False) as recorded:
        assert set(recorded) == set(fresh)
        of_ours = {*EXACT_AS_Q8, *CODES_AS_Q8, *ROUNDED_TO_Q8, *AS_IT_IS[1:]}
        assert {name.split("/")[0] for name in fresh} >= of_ours - {"nvfp4"}
        for name in fresh:
            assert np.array_equal(fresh[name], recorded[name]), name
