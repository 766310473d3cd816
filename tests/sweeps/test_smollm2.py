"""The real model at thousands of tokens, and converted to each type of weights: the same bytes in any chunks."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from kvist import LLM, CacheSpec

TEXT = (
    "The cache makes a step cheap and then becomes the bottleneck itself: it grows with every layer, token and user. "
)


def digests(logits: np.ndarray[Any, Any]) -> list[bytes]:
    return [hashlib.sha256(row.tobytes()).digest() for row in logits]


@pytest.mark.parametrize("codec", ["bf16", "f32"])
def test_thousands_of_tokens(codec: str) -> None:
    with LLM("smollm2-135m", threads=2, context=2304, cache=CacheSpec(codec)) as llm:
        token_ids = llm.tokenizer.encode(TEXT * 120)[:2300]
        assert len(token_ids) == 2300
        expected = digests(llm.logits(token_ids))
        for chunk in (1, 2, 3, 4, 5, 17, 100, 255):
            assert digests(llm.logits(token_ids, chunk=chunk)) == expected


@pytest.mark.parametrize("weights", ["f32", "bf16", "q8", "q4"])
def test_converted_weights(weights: str) -> None:
    with LLM("smollm2-135m", weights=weights, threads=2, context=384) as llm:
        token_ids = llm.tokenizer.encode(TEXT * 20)[:330]
        expected = digests(llm.logits(token_ids))
        for chunk in (1, 3, 17):
            assert digests(llm.logits(token_ids, chunk=chunk)) == expected
        assert digests(llm.logits(token_ids[:12], cache=False)) == expected[:12]
