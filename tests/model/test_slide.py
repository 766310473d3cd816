"""Past the limit with real passes: rotary models forget behind sinks, learned positions begin anew; to the byte."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from proof.cases import CASES, Case
from tiny.bounded import forward
from tiny.compare import row_errors
from tiny.lesson import lesson
from tiny.stream import Stream

from kvist import LLM, CacheSpec, SamplingParams
from kvist.engine.limit import Limit
from kvist.spec.retention import ALL

CONTEXT = 96
CASES_OF = {"rotary": Case("full", {**CASES["f32"].config}, codec="f32"), "learned": CASES["learned"]}
LENGTHS = [CONTEXT - 1, CONTEXT, CONTEXT + 1, 3 * CONTEXT]


@pytest.fixture(scope="module", params=CASES_OF)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(family: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = CASES_OF[family].write(tmp_path_factory.mktemp(family))
    with LLM(path, cache=CacheSpec("f32"), threads=2, context=CONTEXT, on_limit="slide") as found:
        yield found


def text(length: int) -> list[int]:
    return Stream(4, "slide").integers(length, 50)


def params(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.9, seed=1, ignore_eos=True)


@pytest.mark.parametrize("length", LENGTHS)
def test_the_same_without_a_cache_and_with_the_prompt_longer(model: LLM, length: int) -> None:
    """What is dropped depends on where a token stands, not on whether it was asked or answered."""
    answered = model.generate(text(40), params(length - 40), digest=True)
    assert answered.finish_reason == "length"
    asked = model.generate([*text(40), *answered.token_ids[:-8]], params(8), reuse=False)
    assert asked.token_ids == answered.token_ids[-8:]
    assert asked.dropped_tokens == answered.dropped_tokens
    if length <= CONTEXT + 1:
        uncached = model.generate(text(40), params(length - 40), digest=True, cache=False)
        assert uncached.logits_sha256 == answered.logits_sha256


def test_the_logits_are_the_oracles(model: LLM, family: str) -> None:
    """Each token's log-probability beside the lesson's over what it sees, each rounded in an order of its own."""
    ids = text(2 * CONTEXT)
    limit = Limit(CONTEXT, "slide", is_learned=family == "learned")
    weights, config = lesson(CASES_OF[family].model)
    for length in (CONTEXT, CONTEXT + 1, CONTEXT + 30, 2 * CONTEXT):
        asked = SamplingParams(max_tokens=1, ignore_eos=True, logprobs=5)
        (found,) = model.generate(ids[:length], asked, reuse=False).logprobs or ()
        if family == "learned":
            held = limit.held(ids[:length], limit.num_dropped(length))
            (row,) = forward(weights, config, held, ALL)[-1:]
        else:
            (row,) = forward(weights, config, ids[:length], limit.retention(ALL))[-1:]
        shifted = row - row.max()
        exact = shifted - np.log(np.exp(shifted).sum())
        assert row_errors(np.array([[lp for _, lp in found.top]]), exact[[t for t, _ in found.top]][None]).max() < 1e-4


def test_nothing_grows(model: LLM, family: str) -> None:
    generation = model.stream(text(40), params(700))
    held = set()
    for event in generation:
        if event.index > CONTEXT and event.index % 7 == 0:
            held.add(generation.result.kv.allocated_bytes)
    assert max(held) <= model.engine._cache.pool_bytes
    assert generation.result.generated_tokens == 700
    if family == "rotary":
        assert max(held) - min(held) <= max(group.block_bytes for group in model.engine._cache.groups)
