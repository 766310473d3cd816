"""A next prompt computes only what it doesn't share with what is in the cache, and gets the same answer."""

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
from kvist.engine.transcript import Transcript
from kvist.spec.cache import CacheSpec

PARAMS = SamplingParams(max_tokens=5, ignore_eos=True)


def engine(window: int | None = None, num_sequences: int = 2, **decoder: Any) -> tuple[Engine, KvCache]:
    spec = fake_spec(window=window)
    cache = KvCache(spec, CacheSpec(), num_tokens=256, num_sequences=num_sequences)
    fake = FakeDecoder(spec, **decoder)
    return Engine(fake, cache, CacheSpec(), context_length=256, tokenizer=byte_tokenizer()), cache


def answer(of: Engine, prompt: list[int], transcript: Transcript | None = None) -> Result:
    generation = Generation(of, Request(tuple(prompt), PARAMS, has_digest=True), transcript=transcript)
    list(generation)
    return generation.result


def test_a_second_turn_computes_only_its_new_text() -> None:
    of, _ = engine()
    transcript = of.new_transcript()
    prompt = list(b"turn one")
    first = answer(of, prompt, transcript)
    assert (first.cached_tokens, first.forward_tokens) == (0, 8 + 4)
    longer = [*prompt, *first.token_ids, *b"turn two"]
    second = answer(of, longer, transcript)
    assert second.cached_tokens == 8 + 4  # the last token chosen never entered the model
    assert second.forward_tokens == 1 + 8 + 4
    alone = answer(of, longer)
    assert alone.cached_tokens == 0
    assert alone.logits_sha256 == second.logits_sha256
    transcript.release()


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=40), min_size=1, max_size=6), st.booleans())
def test_any_prompts_in_a_row_get_the_answers_they_get_alone(prompts: list[list[int]], has_window: bool) -> None:
    of, cache = engine(window=12 if has_window else None)
    transcript = of.new_transcript()
    for prompt in prompts:
        kept = answer(of, prompt, transcript)
        assert kept.logits_sha256 == answer(of, prompt).logits_sha256
        assert kept.cached_tokens + kept.forward_tokens == len(prompt) + 4
        transcript.sequence.check()
    transcript.release()
    assert all(pool.num_free == pool.num_blocks for pool in cache.pools)


def test_after_an_interruption_the_transcript_knows_what_it_holds() -> None:
    of, _ = engine(step_tokens=10)
    transcript = of.new_transcript()
    stops = iter([False, False, True])
    prompt = list(range(100))
    generation = Generation(of, Request(tuple(prompt)), transcript=transcript, is_cancelled=lambda: next(stops))
    list(generation)
    assert transcript.token_ids == prompt[:20]
    assert answer(of, prompt, transcript).cached_tokens == 20


def test_a_step_that_fails_leaves_nothing_wrong_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    of, _ = engine()
    transcript = of.new_transcript()
    answer(of, list(b"abcdef"), transcript)
    forward = FakeDecoder.forward

    def interrupted(self: FakeDecoder, parts: Any) -> Any:
        forward(self, parts)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FakeDecoder, "forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            answer(of, list(b"abcdefghi"), transcript)
    assert answer(of, list(b"abcxyz"), transcript).logits_sha256 == answer(of, list(b"abcxyz")).logits_sha256


def test_reset_starts_empty() -> None:
    of, cache = engine()
    transcript = of.new_transcript()
    answer(of, list(b"abc"), transcript)
    transcript.reset()
    assert all(pool.num_free == pool.num_blocks for pool in cache.pools)
    assert answer(of, list(b"abc"), transcript).cached_tokens == 0
