"""Whole requests at their context's limit, through the engine: each strategy, one before, at, one past, far past it.

The fake's logits are a hash of all tokens before them, whatever is kept: so an answer that slides is that of a longer
context, and one whose tail is computed anew is what that tail alone is answered with.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from fakes.model import FakeCheckpoint, fake_files, fake_spec, install

from kvist import LLM, CacheSpec, SamplingParams
from kvist.engine.limit import Limit
from kvist.errors import ContextWarning, RequestError, SpecError
from kvist.spec.retention import parse_retention

CONTEXT = 64
PROMPT = list(range(5, 25))
LENGTHS = [CONTEXT - 1, CONTEXT, CONTEXT + 1, 3 * CONTEXT]
"""Tokens of prompt and answer together."""


@pytest.fixture(params=["rotary", "learned"])
def family(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    install(monkeypatch, fake_spec(4096))
    if request.param == "learned":
        real = FakeCheckpoint.__init__

        def gpt2(self: FakeCheckpoint, *arguments: Any) -> None:
            real(self, *arguments)
            self.config = {"model_type": "gpt2"}

        monkeypatch.setattr(FakeCheckpoint, "__init__", gpt2)
    return str(request.param)


def params(length: int) -> SamplingParams:
    return SamplingParams(max_tokens=length - len(PROMPT), ignore_eos=True)


def greedy(model: LLM, token_ids: list[int]) -> int:
    """The token that follows ``token_ids``, computed from nothing."""
    return model.generate(token_ids, SamplingParams(max_tokens=1, ignore_eos=True), reuse=False).token_ids[0]


@pytest.mark.parametrize("length", LENGTHS)
def test_stop(family: str, length: int) -> None:
    with LLM("any", context=CONTEXT) as model:
        result = model.generate(PROMPT, params(length))
        longest = CONTEXT + 1 - len(PROMPT)  # the last token chosen takes no room
        assert result.generated_tokens == min(length - len(PROMPT), longest)
        assert result.finish_reason == ("length" if length <= CONTEXT + 1 else "context")
        assert result.dropped_tokens == 0
        if length > CONTEXT:
            with pytest.raises(RequestError, match=rf"the prompt has {length} tokens and the context holds 64"):
                model.generate([7] * length)


@pytest.mark.parametrize("length", LENGTHS)
def test_refuse(family: str, length: int) -> None:
    with LLM("any", context=CONTEXT, on_limit="refuse") as model:
        if length > CONTEXT:
            with pytest.raises(RequestError, match=r"tokens of prompt and \d+ of answer exceed the context of 64"):
                model.generate(PROMPT, params(length))
            return
        assert model.generate(PROMPT, params(length)).finish_reason == "length"


@pytest.mark.parametrize("length", LENGTHS)
def test_truncate(family: str, length: int) -> None:
    prompt = [5 + number % 90 for number in range(length)]
    with LLM("any", context=CONTEXT, on_limit="truncate") as model:
        result = model.generate(prompt, SamplingParams(max_tokens=8, ignore_eos=True))
        assert (result.finish_reason, result.prompt_tokens) == ("length", length)
        assert result.dropped_tokens == length - (CONTEXT - 8)
        kept = prompt[:4] + prompt[4 + result.dropped_tokens :]
        assert result.token_ids[0] == greedy(model, kept)
        chosen = model.generate(prompt, SamplingParams(max_tokens=8, ignore_eos=True), num_first=20)
        assert chosen.token_ids[0] == greedy(model, prompt[:20] + prompt[20 + chosen.dropped_tokens :])


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("how", ["answer", "prompt", "no cache", "speculation"])
def test_slide(family: str, length: int, how: str) -> None:
    """Far past the limit, in the answer or in the prompt already."""
    prompt = [5 + number % 90 for number in range(length)] if how == "prompt" else PROMPT
    settings = SamplingParams(
        max_tokens=30 if how == "prompt" else length - len(PROMPT),
        ignore_eos=True,
        speculation=4 if how == "speculation" else 0,
    )
    with LLM("any", context=CONTEXT, on_limit="slide") as model:
        result = model.generate(prompt, settings, cache=how != "no cache")
        assert result.finish_reason == "length"
        assert result.generated_tokens == settings.max_tokens
        held = len(prompt) + result.generated_tokens - 1
        text = [*prompt, *result.token_ids]
        limit = Limit(CONTEXT, "slide", is_learned=family == "learned")
        if family == "learned":
            assert result.dropped_tokens == limit.num_dropped(held)
            for end in range(len(prompt), len(text)):
                assert text[end] == greedy(model, limit.held(text[:end], limit.num_dropped(end)))
        else:
            assert result.dropped_tokens == (held - 36 if held > CONTEXT else 0)  # 4 sinks and a window of 32
            with LLM("any", context=1000) as long:
                assert long.generate(prompt, settings, reuse=False).token_ids == result.token_ids
        model.engine._cache.check()


def test_several_slide_side_by_side_as_alone(family: str) -> None:
    prompts = [[5 + number * step % 90 for number in range(10)] for step in (1, 2, 3)]
    settings = SamplingParams(max_tokens=90, ignore_eos=True)
    with LLM("any", context=CONTEXT, on_limit="slide") as model:
        alone = [model.generate(prompt, settings, reuse=False).token_ids for prompt in prompts]
        together = model.generate(prompts, settings)
        assert [result.token_ids for result in together] == alone
        assert sum(result.num_preemptions for result in together) > 0, "they share the room of one"
        model.engine._cache.check()


def test_a_request_may_have_its_own(family: str) -> None:
    with LLM("any", context=CONTEXT) as model:
        assert model.generate(PROMPT, params(100), on_limit="slide").finish_reason == "length"
        assert model.generate(PROMPT, params(100)).finish_reason == "context"
        with pytest.raises(RequestError, match='unknown on_limit "wrap"; known: stop, truncate, slide, refuse'):
            model.generate(PROMPT, params(100), on_limit="wrap")  # type: ignore[typeddict-item]
        with pytest.raises(SpecError, match='unknown policy "some" for retention'):
            model.generate(PROMPT, retention="some")
        windowed = model.generate(PROMPT, params(60), retention="window:16")
        assert windowed.dropped_tokens == 59 - 16
        assert windowed.kv.allocated_bytes < model.generate(PROMPT, params(60)).kv.allocated_bytes


@pytest.mark.parametrize("asked", ["window:1000", "sinks:4+1000", "window:60"])
def test_a_window_larger_than_the_context_slides_within_it(family: str, asked: str) -> None:
    with LLM("any", context=CONTEXT, kv_budget=1 << 20, retention=asked, on_limit="slide") as model:
        generation = model.stream(PROMPT, params(3 * CONTEXT))
        block_bytes = sum(group.block_bytes for group in model.engine._cache.groups)
        held = [generation.result.kv.allocated_bytes for _ in generation]
        assert generation.result.finish_reason == "length"
        assert max(held) <= CONTEXT // 16 * block_bytes
        model.engine._cache.check()
    with LLM("any", context=CONTEXT, retention=asked, on_limit="slide") as model:
        assert model.generate(PROMPT, params(3 * CONTEXT)).token_ids == generation.result.token_ids


@pytest.mark.parametrize("kept", ["h2o:64", "snapkv:64"])
def test_a_pair_that_serves_nobody_is_refused_at_once(family: str, kept: str) -> None:
    files = fake_files(context_length=CONTEXT)
    with pytest.raises(
        RequestError, match=rf"slide goes with retention all, window:N or sinks:S\+N, got {kept}"
    ) as error:
        LLM(files, retention=kept, on_limit="slide")
    assert "\n" not in str(error.value)
    assert files.checkpoint.is_closed  # type: ignore[attr-defined]
    with LLM("any", context=CONTEXT, retention=kept) as model:
        with pytest.raises(RequestError) as asked:
            model.generate(PROMPT, on_limit="slide")
        assert str(asked.value) == str(error.value)


def test_a_chat_keeps_its_system_message(family: str) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "word " * 40}]
    with LLM("any", context=CONTEXT, on_limit="truncate") as model:
        ids = model.files.encode_chat(messages)
        first = model.files.num_system_tokens(messages, ids)
        assert model.tokenizer.decode(ids[:first]).startswith("<|im_start|>system\nBe brief.<|im_end|>")
        result = model.chat(messages, SamplingParams(max_tokens=4, ignore_eos=True), reuse=False)
        assert result.dropped_tokens == len(ids) - 60
        assert result.token_ids[0] == greedy(model, ids[:first] + ids[first + result.dropped_tokens :])


def test_a_context_longer_than_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake_spec(CONTEXT))
    with pytest.warns(ContextWarning, match=r"trained on contexts of 64 tokens and may see 100 here.*sinks:4\+60"):
        LLM("any", context=100).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with LLM("any") as model:
            assert model.context_length == CONTEXT


def test_learned_positions_end_where_they_were_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake_spec(CONTEXT))
    files = fake_files(context_length=CONTEXT)
    files.checkpoint.config = {"model_type": "gpt2"}  # type: ignore[misc]
    with pytest.raises(SpecError, match="from 1 to 64 tokens, as trained: it has learned no position beyond") as error:
        LLM(files, context=65)
    assert "\n" not in str(error.value)


def test_tokens_are_chosen_only_where_layers_see_all(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake_spec(CONTEXT, window=16))
    with pytest.raises(SpecError, match="h2o:64 needs layers that see every token, and layer 0 has a window of 16"):
        LLM("any", cache=CacheSpec(retention=parse_retention("h2o:64")))
    with LLM("any") as model, pytest.raises(SpecError, match="snapkv:64 needs layers that see every token"):
        model.generate(PROMPT, retention="snapkv:64")
