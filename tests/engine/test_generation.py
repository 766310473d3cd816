"""Answers of the engine on a decoder whose logits give away any wrong prefix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from fakes.decoder import FakeDecoder
from fakes.model import END, byte_tokenizer, fake_spec
from hypothesis import given
from hypothesis import strategies as st

from kvist.cache.kv_cache import KvCache
from kvist.engine.engine import Engine
from kvist.engine.generation import Generation
from kvist.engine.request import Request, SamplingParams
from kvist.engine.result import Result
from kvist.errors import RequestError
from kvist.spec.cache import CacheSpec, allocated_bytes, bytes_per_token, logical_bytes, pool_bytes

PROMPT = tuple(b"Once upon a time")
SPEC = CacheSpec()


@contextmanager
def engine(
    *, context: int = 256, window: int | None = None, step_tokens: int = 256, has_tokenizer: bool = True, **decoder: Any
) -> Iterator[Engine]:
    """An engine on a fake decoder; afterwards all blocks must be free again."""
    spec = fake_spec(context, window)
    cache = KvCache(spec, SPEC, num_tokens=context, step_tokens=step_tokens)
    fake = FakeDecoder(spec, step_tokens=step_tokens, **decoder)
    tokenizer = byte_tokenizer() if has_tokenizer else None
    yield Engine(fake, cache, SPEC, context_length=context, tokenizer=tokenizer, end_token_ids=frozenset({END}))
    cache.check()
    assert not any(pool.num_used for pool in cache.pools)


def answer(of: Engine, prompt: tuple[int, ...] = PROMPT, **settings: Any) -> Result:
    names = ("is_cached", "has_digest")
    request = {name: settings.pop(name) for name in names if name in settings}
    generation = Generation(of, Request(prompt, SamplingParams(**settings), **request))
    list(generation)
    return generation.result


def test_counts_and_bytes() -> None:
    with engine() as of:
        result = answer(of, max_tokens=20, ignore_eos=True)
        num_held = len(PROMPT) + 19
        assert result.prompt_tokens == len(PROMPT)
        assert result.generated_tokens == 20
        assert result.forward_tokens == num_held
        assert result.finish_reason == "length"
        assert result.kv.logical_bytes == logical_bytes(fake_spec(), SPEC, num_held)
        assert result.kv.allocated_bytes == allocated_bytes(fake_spec(), SPEC, num_held)
        assert result.kv.pool_bytes == pool_bytes(fake_spec(), SPEC, 256, 256)
        assert result.kv.bytes_per_token == bytes_per_token(fake_spec(), SPEC)
        assert (result.kv.k, result.kv.v) == ("bf16", "bf16")


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_cache_off_gives_the_same(window: int | None, temperature: float) -> None:
    settings = {"max_tokens": 12, "ignore_eos": True, "has_digest": True, "temperature": temperature, "seed": 3}
    with engine(window=window, step_tokens=5) as of:
        cached = answer(of, is_cached=True, **settings)
        uncached = answer(of, is_cached=False, **settings)
    assert cached.token_ids == uncached.token_ids
    assert cached.logits_sha256 == uncached.logits_sha256
    assert cached.kv == uncached.kv
    assert cached.forward_tokens == len(PROMPT) + 11
    assert uncached.forward_tokens == sum(len(PROMPT) + n for n in range(12))


@pytest.mark.parametrize("step_tokens", [1, 3, 16, 17, 255])
def test_pieces_of_prefill_change_nothing(step_tokens: int) -> None:
    with engine() as of:
        whole = answer(of, max_tokens=9, has_digest=True)
    with engine(step_tokens=step_tokens) as of:
        assert answer(of, max_tokens=9, has_digest=True).logits_sha256 == whole.logits_sha256


@given(st.lists(st.integers(0, 255), min_size=1, max_size=60), st.integers(1, 70), st.integers(1, 30))
def test_logits_for_any_chunk(prompt: list[int], chunk: int, step_tokens: int) -> None:
    with engine(step_tokens=step_tokens) as of:
        whole = of.logits(prompt)
        assert whole.dtype == np.float32
        assert np.array_equal(whole, of.logits(prompt, chunk=chunk))
        assert np.array_equal(whole, of.logits(prompt, is_cached=False, chunk=chunk))


def test_events_say_the_same_as_the_result() -> None:
    with engine(answer=[*"née à".encode(), END]) as of:
        generation = Generation(of, Request(PROMPT, SamplingParams(max_tokens=30, logprobs=2)))
        events = list(generation)
        result = generation.result
    assert "".join(event.text for event in events) == result.text == "née à"
    assert [event.text for event in events] == ["n", "", "é", "e", " ", "", "à", ""]
    assert tuple(event.token_id for event in events) == result.token_ids
    assert [event.index for event in events] == list(range(8))
    assert [event.finish_reason for event in events] == [None] * 7 + ["stop"]
    assert tuple(event.logprobs for event in events) == result.logprobs
    assert result.token_ids[-1] == END


def test_stop_strings_end_before_themselves() -> None:
    with engine(answer=list(b"one two three")) as of:
        result = answer(of, stop=("wo t", "zzz"), max_tokens=13)
        assert (result.text, result.finish_reason) == ("one t", "stop")
        assert bytes(result.token_ids) == b"one two t"
        result = answer(of, stop="o thz", max_tokens=9)
        assert (result.text, result.finish_reason) == ("one two t", "length")


def test_stop_token_ids_and_ignored_ends() -> None:
    with engine(answer=[*b"ab", END, *b"cd"]) as of:
        assert answer(of).text == "ab"
        assert answer(of, ignore_eos=True, max_tokens=5).text == "abcd"
        result = answer(of, ignore_eos=True, stop_token_ids=(ord("c"),))
        assert (result.text, result.finish_reason) == ("ab", "stop")


def test_the_context_is_used_to_its_last_place() -> None:
    with engine(context=40) as of:
        result = answer(of, ignore_eos=True)
        assert result.finish_reason == "context"
        assert result.forward_tokens == 40
        assert result.generated_tokens == 40 - len(PROMPT) + 1
        assert answer(of, tuple(range(40)), ignore_eos=True).generated_tokens == 1
        with pytest.raises(RequestError, match="41 tokens and the context holds 40"):
            answer(of, tuple(range(41)))


@pytest.mark.parametrize(
    ("prompt", "settings", "said"),
    [
        ((), {}, "empty"),
        ((1, 264), {}, "token id 264.*0 to 263"),
        ((-1, 2), {}, "token id -1"),
        ((1,), {"logit_bias": {264: 1.0}}, "logit_bias"),
    ],
)
def test_requests_that_cannot_be_served(prompt: tuple[int, ...], settings: dict[str, Any], said: str) -> None:
    with engine() as of, pytest.raises(RequestError, match=said):
        answer(of, prompt, **settings)


def test_without_a_tokenizer_there_is_no_text() -> None:
    with engine(has_tokenizer=False) as of:
        result = answer(of, max_tokens=3, ignore_eos=True)
        assert (result.text, result.generated_tokens) == ("", 3)
        with pytest.raises(RequestError, match="stop strings need a tokenizer"):
            answer(of, stop="x")


def test_a_seed_repeats_and_a_missing_one_is_named() -> None:
    with engine() as of:
        first = answer(of, temperature=1.5, max_tokens=30)
        assert answer(of, temperature=1.5, max_tokens=30, seed=first.seed).token_ids == first.token_ids
        assert answer(of, temperature=1.5, max_tokens=30, seed=first.seed + 1).token_ids != first.token_ids


def test_choices_differ() -> None:
    with engine() as of:
        texts = set()
        for choice in range(4):
            params = SamplingParams(temperature=1.5, seed=1, max_tokens=30)
            generation = Generation(of, Request(PROMPT, params, choice=choice))
            list(generation)
            texts.add(generation.result.token_ids)
        assert len(texts) == 4


def test_cancelling_a_long_prefill_stops_within_a_step() -> None:
    asked = []

    def is_cancelled() -> bool:
        asked.append(True)
        return len(asked) > 3

    with engine(step_tokens=10) as of:
        generation = Generation(of, Request(tuple(range(200))), is_cancelled=is_cancelled)
        assert list(generation) == []
        result = generation.result
    assert (result.finish_reason, result.forward_tokens, result.text) == ("cancelled", 30, "")
    assert result.ttft_s is None
    assert result.tpot_s is None


def test_cancelling_keeps_the_text_so_far() -> None:
    shown: list[str] = []
    with engine(answer=list(b"abcdefgh")) as of:
        generation = Generation(of, Request(PROMPT), is_cancelled=lambda: len(shown) == 3)
        shown.extend(event.text for event in generation)
        generation = Generation(of, Request(PROMPT), is_cancelled=lambda: len(generation.result.token_ids) == 3)
        list(generation)
        assert (generation.result.text, generation.result.finish_reason) == ("abc", "cancelled")


def test_walking_away_gives_the_blocks_back() -> None:
    with engine() as of:
        generation = Generation(of, Request(PROMPT, SamplingParams(ignore_eos=True)))
        next(iter(generation))
        generation.close()
        assert generation.result.finish_reason == "cancelled"
        assert generation.result.generated_tokens == 1


def test_times() -> None:
    with engine(step_s=0.02) as of:
        result = answer(of, max_tokens=4, ignore_eos=True)
        assert result.ttft_s is not None
        assert result.tpot_s is not None
        assert 0.02 <= result.ttft_s < 20  # seconds, not milliseconds
        assert 0.02 <= result.tpot_s < 20
        assert answer(of, max_tokens=1).tpot_s is None
