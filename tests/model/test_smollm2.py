"""The real model, its weights as the file holds them: the same bytes however its rows are computed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tiny.recorded import DATA
from tiny.surprise import surprises

from kvist import LLM, SamplingParams
from kvist.cache.kv_cache import KvCache
from kvist.model.decoder import Part
from kvist.spec.cache import CacheSpec

TEXT = "A decoder generates one token at a time. Each new token attends to the keys and values of every earlier token. "
Logits = np.ndarray[Any, np.dtype[np.float32]]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("smollm2-135m", threads=2, context=512) as llm:
        yield llm


@pytest.fixture(scope="module")
def long(llm: LLM) -> list[int]:
    """More tokens than a span of attention holds."""
    ids = llm.tokenizer.encode(TEXT * 15)[:330]
    assert len(ids) == 330
    return ids


@pytest.fixture(scope="module")
def expected(llm: LLM, long: list[int]) -> list[bytes]:
    return digests(llm.logits(long))


def digests(logits: Logits) -> list[bytes]:
    """Each row's own, since a few hundred rows of 49,152 logits are many bytes to keep."""
    return [hashlib.sha256(row.tobytes()).digest() for row in logits]


@pytest.mark.parametrize("chunk", [1, 3, 16, 17, 255])
def test_chunks(llm: LLM, long: Sequence[int], expected: list[bytes], chunk: int) -> None:
    assert digests(llm.logits(long, chunk=chunk)) == expected


def test_without_a_cache(llm: LLM, long: Sequence[int], expected: list[bytes]) -> None:
    before = llm.num_forward_tokens
    assert digests(llm.logits(long[:24], cache=False)) == expected[:24]
    assert llm.num_forward_tokens - before == sum(range(1, 25))
    for length in (256, 257, 305):
        assert digests(llm.logits(long[:length], chunk=100)[-1:]) == [expected[length - 1]]


def test_generated_with_and_without_a_cache(llm: LLM, long: Sequence[int]) -> None:
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    for prompt in (long[:7], long[:250]):
        cached, uncached = (llm.generate(prompt, params, cache=cache, digest=True) for cache in (True, False))
        assert cached.token_ids == uncached.token_ids
        assert cached.logits_sha256 == uncached.logits_sha256
        assert cached.forward_tokens == len(prompt) - cached.cached_tokens + 11
        assert uncached.forward_tokens == sum(len(prompt) + count for count in range(12))


@pytest.mark.parametrize("threads", [1, 3])
def test_threads(long: Sequence[int], expected: list[bytes], threads: int) -> None:
    with LLM("smollm2-135m", threads=threads, context=512) as llm:
        assert digests(llm.logits(long)) == expected
        assert digests(llm.logits(long[:40], chunk=1)) == expected[:40]


def test_several_sequences_in_a_pass(llm: LLM, long: Sequence[int], expected: list[bytes]) -> None:
    """Also that blocks which lie scattered, and hold what others wrote, make no difference."""
    decoder = llm._decoder
    cache = KvCache(llm.spec, CacheSpec(), num_tokens=330, num_sequences=4)
    cache.store.arena[:] = 0xFF
    sequences = [cache.new_sequence() for _ in range(4)]
    for start in range(0, 330, 55):
        for end in range(start + 11, start + 56, 11):
            parts = [Part(sequence, long[end - 11 : end], "all") for sequence in sequences[1:]]
            assert digests(decoder.forward(parts)) == 3 * expected[end - 11 : end]
        if start == 110:
            sequences.pop(2).release()
            sequences.append(cache.new_sequence())
            assert digests(decoder.forward([Part(sequences[-1], long[:165], "all")])) == expected[:165]
    sequences[1].truncate(200)
    assert digests(decoder.forward([Part(sequences[1], long[200:], "all")])) == expected[200:]


def test_many_requests_at_once(long: Sequence[int]) -> None:
    """Twenty in a pool for three, with common beginnings, forks, guesses, swaps; each as alone with the cache off."""
    greedy = SamplingParams(max_tokens=5, ignore_eos=True)
    drawn = replace(greedy, temperature=0.8, seed=3)
    asked = [(long[at : at + 20 + 7 * number], greedy) for number, at in enumerate((0, 0, 0, 50, 50))]
    asked += [
        (long[10:60], replace(drawn, n=2)),
        (long[10:60], drawn),
        (list(long[:30]) * 2, replace(greedy, speculation=8)),
    ]
    asked += [(long[number : number + 48], drawn) for number in range(12)]
    room = {"threads": 2, "context": 96, "kv_budget": 3 * 6 * 16 * 23040}
    with LLM("smollm2-135m", **room) as llm:  # type: ignore[arg-type]
        expected = [llm.generate(prompt, params, cache=False, digest=True) for prompt, params in asked]
    for preemption in ("recompute", "swap"):
        with LLM("smollm2-135m", preemption=preemption, **room) as llm:  # type: ignore[arg-type]
            found = llm.generate([list(prompt) for prompt, _ in asked], [params for _, params in asked], digest=True)
            assert llm.stats().blocks_used == 0
        for one, other in zip(found, expected, strict=True):
            assert one.logits_sha256 == other.logits_sha256
            assert [choice.logits_sha256 for choice in one.choices] == [c.logits_sha256 for c in other.choices]


def test_perplexity_is_llamacpps(llm: LLM) -> None:
    """Of the same file; recorded by oracles_llamacpp/perplexity.py. Noise of 8-bit activations is near 0.3 %."""
    recorded = json.loads((DATA / "llamacpp_perplexity.json").read_text())
    ids = recorded["token_ids"]
    ours = np.exp(surprises(llm.logits(ids), ids).mean())
    assert ours == pytest.approx(recorded["perplexity"]["Q4_1"], rel=0.01)
