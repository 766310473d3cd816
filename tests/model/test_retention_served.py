"""Retention through the engine: a request gets the same bits alone, in company, preempted, and without a cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from proof.cases import CASES, Case
from tiny.stream import Stream

from kvist import LLM, CacheSpec, SamplingParams
from kvist.engine.result import Result
from kvist.spec.cache import allocated_bytes, logical_bytes, pool_bytes
from kvist.spec.retention import parse_retention

FULL = Case("full", {**CASES["f32"].config}, codec="f32")
KINDS = ["all", "window:40", "sinks:4+60", "h2o:64", "snapkv:70"]
SAMPLED = SamplingParams(max_tokens=60, temperature=0.9, seed=3, ignore_eos=True)


@pytest.fixture(scope="module", params=["f32", "int8"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """With room for one and a half of the requests below that keep everything."""
    path, spec = FULL.write(tmp_path_factory.mktemp("served")), CacheSpec(request.param)
    with LLM(path, cache=spec, threads=2, context=256) as found:
        budget = pool_bytes(found.spec, spec, 256, 256) * 3 // 2
    with LLM(path, cache=spec, threads=2, context=256, kv_budget=budget) as found:
        yield found


def prompt(number: int) -> list[int]:
    return Stream(number, "served").integers(100 + 10 * number, 67)


def ask(model: LLM, number: int, kept: str, *, cache: bool = True) -> Result:
    return model.generate(prompt(number), SAMPLED, digest=True, retention=kept, cache=cache, reuse=False)


@pytest.mark.parametrize("kept", KINDS)
def test_without_a_cache(model: LLM, kept: str) -> None:
    few = SamplingParams(max_tokens=40, temperature=0.9, seed=3, ignore_eos=True)
    found = [model.generate(prompt(1), few, digest=True, retention=kept, cache=cache) for cache in (True, False)]
    assert found[0].logits_sha256 == found[1].logits_sha256
    assert found[0].dropped_tokens == found[1].dropped_tokens


def test_together_and_preempted(model: LLM) -> None:
    alone = {(number, kept): ask(model, number, kept) for number in range(3) for kept in KINDS}
    assert len({result.logits_sha256 for result in alone.values()}) == len(alone)
    streams = {
        key: model.stream(prompt(key[0]), SAMPLED, digest=True, retention=key[1], reuse=key[0] > 0) for key in alone
    }
    for stream in streams.values():
        for _ in stream:
            pass
    results = {key: stream.result for key, stream in streams.items()}
    assert {key: result.logits_sha256 for key, result in results.items()} == {
        key: result.logits_sha256 for key, result in alone.items()
    }
    assert sum(result.num_preemptions for result in results.values()) > 0
    model.engine._cache.check()


@pytest.mark.parametrize("kept", KINDS)
def test_what_is_held_and_dropped(model: LLM, kept: str) -> None:
    result = ask(model, 3, kept)
    held = len(prompt(3)) + SAMPLED.max_tokens - 1
    sizes = held, len(prompt(3))
    assert result.dropped_tokens == parse_retention(kept).num_dropped(*sizes)
    assert (result.dropped_tokens > 0) == (kept != "all")
    spec = replace(model.engine._cache.spec, retention=parse_retention(kept))
    assert result.kv.logical_bytes == logical_bytes(model.spec, spec, *sizes)
    assert result.kv.allocated_bytes == allocated_bytes(model.spec, spec, *sizes)


@pytest.mark.parametrize("kept", KINDS)
def test_several_answers_to_a_prompt(model: LLM, kept: str) -> None:
    """Choices fork from one prompt and then keep tokens of their own."""
    params = SamplingParams(max_tokens=80, temperature=1.0, seed=5, ignore_eos=True, n=2)
    both = model.generate(prompt(2), params, digest=True, retention=kept, reuse=False)
    assert len({choice.token_ids for choice in both.choices}) == 2
    for number, choice in enumerate(both.choices):
        assert choice.dropped_tokens == both.dropped_tokens
        assert choice.generated_tokens == 80, number
    again = model.generate(prompt(2), params, digest=True, retention=kept, cache=False, reuse=False)
    assert [choice.logits_sha256 for choice in again.choices] == [choice.logits_sha256 for choice in both.choices]


def test_nothing_is_drafted_where_it_could_not_be_taken_back(model: LLM) -> None:
    params = SamplingParams(max_tokens=40, ignore_eos=True, speculation=8)
    text = [5, 6, 7, 8] * 20
    assert model.generate(text, params, reuse=False).drafted_tokens > 0
    assert model.generate(text, params, retention="h2o:64").drafted_tokens == 0
