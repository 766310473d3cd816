"""Perplexity of SmolLM2 in every kind of file that llama.cpp's quantiser makes of it, kvist's against llama.cpp's.

Both round activations to 8 bits, in ways of their own (llama.cpp with K types in groups of 256, kvist in groups of 32),
so single tokens cost a little more or less. Over this text's 511 tokens such noise moves a mean by 0.3 to 0.5 %: a file
passes that is within 0.5 %, or by more only where that is within three standard errors of the tokens' differences.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from oracles_llamacpp.perplexity import FILE, FTYPES, llamacpp_surprises
from tiny.surprise import surprises

from kvist import LLM, CacheSpec

RECORDED = json.loads(FILE.read_text())
F32 = CacheSpec("f32")


@pytest.mark.parametrize("ftype", FTYPES)
def test_perplexity(ftype: str, measured) -> None:
    ids = RECORDED["token_ids"]
    theirs, path = llamacpp_surprises(ftype, ids)
    with LLM(path, cache=F32, context=len(ids)) as llm:
        ours = surprises(llm.logits(ids), ids)
    path.unlink()
    path.parent.rmdir()
    difference = ours - theirs
    error = difference.std() / np.sqrt(difference.size)
    measured(ftype, "kvist's perplexity over llama.cpp's", np.exp(difference.mean()))
    measured(ftype, "standard error of its logarithm", error)
    assert abs(difference.mean()) < max(0.005, 3 * error)
    if ftype in RECORDED["perplexity"]:
        assert np.exp(theirs.mean()) == pytest.approx(RECORDED["perplexity"][ftype], rel=2e-3)
