"""A next prompt computes only what the cache doesn't have, and gets the same answer."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.decoder import FakeDecoder
from fakes.model import byte_tokenizer, fake_spec
from hypothesis import given
from hypothesis import strategies as st

from kvist.cache.kv_cache import KvCache
from kvist.engine.engine import Engine
from kvist.engine.generation import Generation
from kvist.engine.request import Request, SamplingParams
from kvist.engine.result import Result
from kvist.spec.cache import CacheSpec
from kvist.spec.retention import parse_retention

PARAMS = SamplingParams(max_tokens=5, ignore_eos=True)


def engine(window: int | None = None, num_sequences: int = 2, **decoder: Any) -> tuple[Engine, KvCache]:
    spec = fake_spec(window=window)
    cache = KvCache(spec, CacheSpec(), num_tokens=256, num_sequences=num_sequences)
    fake = FakeDecoder(spec, **decoder)
    return Engine(fake, cache, CacheSpec(), context_length=256, tokenizer=byte_tokenizer()), cache


def answer(of: Engine, prompt: list[int], **request: Any) -> Result:
    generation = Generation(of, Request(tuple(prompt), PARAMS, has_digest=True, **request))
    list(generation)
    return generation.result


def test_a_second_turn_computes_only_its_new_text() -> None:
    of, _ = engine()
    prompt = list(b"turn one")
    first = answer(of, prompt)
    assert (first.cached_tokens, first.forward_tokens) == (0, 8 + 4)
    longer = [*prompt, *first.token_ids, *b"turn two"]
    second = answer(of, longer)
    assert second.cached_tokens == 8 + 4  # the last token chosen never entered the model
    assert second.forward_tokens == 1 + 8 + 4
    alone = answer(of, longer, is_shared=False)
    assert (alone.cached_tokens, alone.miss.kind if alone.miss else None) == (0, "off")
    assert alone.logits_sha256 == second.logits_sha256


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=40), min_size=1, max_size=6), st.booleans())
def test_any_prompts_in_a_row_get_the_answers_they_get_alone(prompts: list[list[int]], has_window: bool) -> None:
    of, cache = engine(window=12 if has_window else None)
    for prompt in prompts:
        kept = answer(of, prompt)
        assert kept.logits_sha256 == answer(of, prompt, is_shared=False).logits_sha256
        assert kept.logits_sha256 == answer(of, prompt, is_cached=False).logits_sha256
        assert kept.cached_tokens + kept.forward_tokens == len(prompt) + 4
        cache.check()
    of.reset()
    assert all(pool.num_free == pool.num_blocks for pool in cache.pools)


def test_what_an_interrupted_prompt_computed_is_found() -> None:
    of, _ = engine(step_tokens=10)
    stops = iter([False, False, True])
    prompt = list(range(100))
    generation = Generation(of, Request(tuple(prompt)), is_cancelled=lambda: next(stops))
    assert list(generation) == []
    assert answer(of, prompt).cached_tokens == 20


def test_a_step_that_fails_leaves_nothing_wrong_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    of, cache = engine()
    answer(of, list(b"abcdef"))
    forward = FakeDecoder.forward

    def interrupted(self: FakeDecoder, parts: Any, **how: Any) -> Any:
        forward(self, parts, **how)
        raise KeyboardInterrupt

    generation = Generation(of, Request(tuple(b"abcdefghi"), PARAMS, has_digest=True))
    with monkeypatch.context() as patch:
        patch.setattr(FakeDecoder, "forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            of.step()
    list(generation)  # goes on as if nothing had been
    assert generation.result.logits_sha256 == answer(of, list(b"abcdefghi"), is_shared=False).logits_sha256
    assert answer(of, list(b"abcxyz")).logits_sha256 == answer(of, list(b"abcxyz"), is_shared=False).logits_sha256
    cache.check()


def test_reset_forgets_everything() -> None:
    of, cache = engine()
    answer(of, list(b"abc"))
    of.reset()
    assert all(pool.num_free == pool.num_blocks for pool in cache.pools)
    assert answer(of, list(b"abc")).cached_tokens == 0


def test_a_salt_is_a_world_of_its_own() -> None:
    of, _ = engine()
    prompt = list(b"a secret that is longer than a block of tokens")
    first = answer(of, prompt, salt="one")
    other = answer(of, prompt, salt="two")
    never = answer(of, list(b"nothing like it"), salt="two")
    assert other.cached_tokens == 0
    assert (other.miss, never.miss) == (never.miss, other.miss)
    assert other.logits_sha256 == first.logits_sha256
    assert answer(of, prompt, salt="one").cached_tokens == len(prompt) - 1


def test_a_retention_is_a_world_of_its_own_too() -> None:
    """In one pool at the same moment, and after one another: neither holds a block of the other's."""
    of, cache = engine()
    prompt = tuple(b"the same prompt, longer than two blocks of tokens")
    kept = [None, parse_retention("window:40"), parse_retention("sinks:4+40")]
    tickets = [of.add(Request(prompt, PARAMS, retention=each)) for each in kept]
    of.step()
    held = [set(answer.held.tables[0].held) for ticket in tickets for answer in ticket.answers]
    assert len(set.union(*held)) == sum(map(len, held)) == 3 * 4
    while of.has_work:
        of.step()
        cache.check()
    assert [ticket.result.cached_tokens for ticket in tickets] == [0, 0, 0]
    again = [of.add(Request(prompt, PARAMS, retention=each)) for each in (*kept, parse_retention("window:41"))]
    while of.has_work:
        of.step()
    assert [ticket.result.cached_tokens for ticket in again] == [len(prompt) - 1] * 3 + [0]
