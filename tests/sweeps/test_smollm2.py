"""The real model at thousands of tokens, and converted to each type of weights: the same bytes in any chunks."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from kvist import LLM, CacheSpec, Request, SamplingParams
from kvist.engine.planning import Settings
from kvist.engine.running import run_all
from kvist.spec.retention import parse_retention

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


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_many_in_a_pool_for_two(preemption: Literal["recompute", "swap"]) -> None:
    """Dozens of requests, of which few fit at once: each gets the bytes that it gets alone with the cache off."""
    chance, length = random.Random(preemption), 160
    with LLM("smollm2-135m", threads=2, context=length) as llm:
        one_bytes = llm.engine.usage(None).pool_bytes
        ids = llm.tokenizer.encode(TEXT * 10)
        requests = [
            Request(
                tuple(ids[: chance.randrange(8, 30)] + chance.sample(ids, 3)),
                SamplingParams(
                    max_tokens=chance.randrange(70, 120),
                    temperature=chance.choice((0.0, 1.0)),
                    seed=number,
                    n=chance.choice((1, 1, 2)),
                    speculation=chance.choice((0, 16)),
                    ignore_eos=True,
                ),
                has_digest=True,
                salt=chance.choice(("", "a")),
                retention=chance.choice((None, None, parse_retention("sinks:4+60"))),
            )
            for number in range(24)
        ]
        alone = [run_all(llm.engine, [replace(one, is_cached=False)], show=False)[0] for one in requests]
    more: dict[str, Any] = {"kv_budget": 2 * one_bytes, "settings": Settings(stretch=1e9)}  # however long steps take
    for threads in (1, 2):
        with LLM("smollm2-135m", threads=threads, context=length, preemption=preemption, **more) as llm:
            found = run_all(llm.engine, requests, show=False)
            assert llm.stats().num_preemptions > 10
            for one, expected in zip(found, alone, strict=True):
                assert [choice.logits_sha256 for choice in one.choices or (one,)] == [
                    choice.logits_sha256 for choice in expected.choices or (expected,)
                ]
