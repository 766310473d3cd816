"""The Python face: what ``LLM`` takes, gives, refuses, and lets go of."""

from __future__ import annotations

import gc
import math
import threading
from typing import Any

import numpy as np
import pytest
from fakes.model import fake_files, fake_spec, install

from kvist import LLM, Request, SamplingParams, llm
from kvist.engine.planning import Settings
from kvist.errors import CapacityError, RequestError, SpecError
from kvist.spec.retention import RetentionSpec

SHORT = SamplingParams(max_tokens=6, ignore_eos=True)


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> list:
    return install(monkeypatch)


def test_one_prompt_gives_a_result_and_a_list_gives_a_list() -> None:
    with LLM("any") as model:
        alone = model.generate("Hello", SHORT)
        assert alone.generated_tokens == 6
        ids = model.tokenizer.encode("Hello")
        for prompt in (ids, tuple(ids), np.array(ids)):
            assert model.generate(prompt, SHORT).token_ids == alone.token_ids
        several = model.generate(["Hello", "Goodbye"], SHORT)
        assert [result.token_ids for result in several] == [alone.token_ids, model.generate("Goodbye", SHORT).token_ids]
        assert model.generate([ids, ids], SHORT)[1].token_ids == alone.token_ids
        assert model.generate("Hello", SHORT, cache=False, digest=True).logits_sha256 is not None


def test_stream_then_result() -> None:
    with LLM("any") as model:
        stream = model.stream("Hello", SHORT)
        text = "".join(event.text for event in stream)
        assert stream.result.text == text
        assert stream.result.token_ids == model.generate("Hello", SHORT).token_ids


def test_a_stream_that_only_the_loop_holds_gives_all_its_tokens() -> None:
    with LLM("any") as model:
        tokens = tuple(event.token_id for event in model.stream("Hello", SHORT))
        assert tokens == model.generate("Hello", SHORT).token_ids != ()


def test_chat_is_the_template_then_generate() -> None:
    messages = [{"role": "user", "content": "Hello"}]
    with LLM("any") as model:
        result = model.chat(messages, SHORT)
        assert result.prompt_tokens == len(model.files.encode_chat(messages)) == 24


def test_without_params_the_models_own(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, generation_config={"do_sample": True, "temperature": 0.7})
    with LLM("any") as model:
        assert model.default_params == SamplingParams(temperature=0.7)


def test_logits() -> None:
    with LLM("any") as model:
        logits = model.logits([1, 2, 3])
        assert logits.shape == (3, 264)
        assert logits.dtype == np.float32
        before = model.num_forward_tokens
        assert np.array_equal(model.logits(np.array([1, 2, 3]), cache=False), logits)
        assert model.num_forward_tokens - before == 1 + 2 + 3
        assert np.array_equal(model.logits([1, 2, 3], chunk=2), logits)
        for bad, said in (([], "empty"), ([264], "264"), (["a"], "whole numbers"), ([1.5], "whole numbers")):
            with pytest.raises(RequestError, match=said):
                model.logits(bad)
        for chunk in (0, 2.5, math.nan, "1", True):
            with pytest.raises(RequestError, match=r"chunk must be .*at least 1"):
                model.logits([1], chunk=chunk)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="cache must be True or False, got 'no'"):
            model.logits([1], cache="no")  # type: ignore[arg-type]
        assert np.array_equal(model.engine.logits(np.array([1, 2, 3]), chunk=np.int64(2)), logits)


def test_a_model_without_a_tokenizer_takes_ids_only() -> None:
    with LLM(fake_files(has_tokenizer=False)) as model:
        assert model.generate([1, 2], SHORT).generated_tokens == 6
        assert model.logits([1, 2]).shape == (2, 264)
        for refused in (lambda: model.generate("x"), lambda: model.tokenizer, lambda: model.chat([])):
            with pytest.raises(RequestError, match=r"no tokenizer|no chat template"):
                refused()


def test_a_second_turn_computes_only_its_new_text() -> None:
    with LLM("any") as model:
        messages = [{"role": "user", "content": "Hello"}]
        first = model.chat(messages, SHORT)
        assert (first.cached_tokens, first.forward_tokens) == (0, 24 + 5)
        messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And you?"}]
        second = model.chat(messages, SHORT)
        num_known = 24 + 5  # the last token chosen never entered the model
        assert second.cached_tokens == num_known
        assert second.forward_tokens == second.prompt_tokens - num_known + 5
        again = model.chat(messages, SHORT, reuse=False, digest=True)
        assert (again.cached_tokens, again.token_ids) == (0, second.token_ids)


def test_params_for_each_prompt() -> None:
    with LLM("any") as model:
        several = model.generate(["a", "b"], [SHORT, SamplingParams(max_tokens=3, ignore_eos=True)], progress=True)
        assert [result.generated_tokens for result in several] == [6, 3]
        with pytest.raises(RequestError, match="2 prompts need one SamplingParams or 2 of them, got 1"):
            model.generate(["a", "b"], [SHORT])


def test_streams_that_are_open_at_once_go_on_together(fake: list) -> None:
    with LLM("any") as model:
        streams = [model.stream(prompt, SHORT) for prompt in ("one", "two", "three")]
        for events in zip(*streams, strict=True):
            assert len({event.request_id for event in events}) == 3
        assert fake[0].steps == [11, 3, 3, 3, 3, 3]


def test_who_lets_go_of_a_stream_ends_it() -> None:
    with LLM("any") as model:
        for is_begun in (False, True):
            stream = model.stream("Hello", SHORT)
            if is_begun:
                next(iter(stream))
            del stream
            gc.collect()
            assert (model.stats().num_running, model.stats().num_waiting) == (0, 0)


def test_settings_are_checked_before_anything_is_loaded(fake: list) -> None:
    for error, settings in (
        (SpecError, {"threads": 0}),
        (SpecError, {"context": 0}),
        (SpecError, {"context": -1}),
        (SpecError, {"kv_budget": "lots"}),
        (CapacityError, {"kv_budget": 5}),
    ):
        with pytest.raises(error):
            LLM("any", **settings)
    assert fake == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"swap_budget": -1}, "swap_budget must be from 0 to .* bytes"),
        ({"kv_budget": 5e7}, 'kv_budget must be a whole number, .* or a text such as "1GiB", got 50000000.0'),
        ({"kv_budget": b"1GiB"}, "kv_budget"),
        ({"kv_budget": math.nan}, "kv_budget"),
        ({"kv_budget": 10**400}, "kv_budget"),
        ({"kv_budget": "9" * 400 + "GiB"}, "not a size"),
        ({"threads": 1.5}, "threads must be a whole number, from 1 to 1024, got 1.5"),
        ({"threads": "2"}, "threads"),
        ({"threads": True}, "threads"),
        ({"context": 2.5}, "context must be a whole number, .*, got 2.5"),
        ({"context": "512"}, "context"),
        ({"context": math.inf}, "context"),
        ({"context": 10**400}, "context"),
        ({"policy": []}, "unknown policy"),
        ({"preemption": np.zeros(2)}, "unknown preemption"),
        ({"weights": []}, "unknown weights"),
        ({"settings": None}, "settings must be Settings, got None"),
        ({"prefix_reuse": "no"}, "prefix_reuse must be True or False, got 'no'"),
        ({"model": None}, "model must be a name, a path, or ModelFiles, got None"),
        ({"model": 5}, "model"),
    ],
)
def test_settings_of_another_kind_are_one_line(settings: dict[str, Any], message: str, fake: list) -> None:
    with pytest.raises(SpecError, match=message) as refused:
        LLM(**{"model": "any", **settings})
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 200
    assert fake == []


def test_settings_may_be_numpys() -> None:
    with LLM("any", threads=np.int64(1), context=np.int32(64), kv_budget=np.int64(1 << 20)) as model:
        assert model.context_length == 64


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_running": 1.5}, "max_running must be a whole number, at least 1, or None, got 1.5"),
        ({"max_running": 0}, "max_running"),
        ({"stretch": "x"}, "stretch must be a number, 0 or more, got 'x'"),
        ({"stretch": math.nan}, "stretch must be a finite number"),
        ({"least_rows": 0}, "least_rows must be at least 1, got 0"),
    ],
)
def test_steps_that_cannot_be_made_so(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Settings(**settings)


def test_no_prompts_give_no_answers() -> None:
    with LLM("any") as model:
        assert model.generate([]) == model.generate([], []) == model.generate([], SHORT) == []
        with pytest.raises(RequestError, match="unknown option"):
            model.generate([], width=3)
        with pytest.raises(RequestError, match="the prompt is empty"):
            model.generate([[]], SHORT)


@pytest.mark.parametrize(
    "prompt",
    [None, 5, (number for number in (1, 2)), {1, 2}, {1: 2}, b"abc", np.array(5), [1, "a"], ["a", None], [[1], {2: 3}],
     [1.5], [True]],
    ids=str,
)  # fmt: skip
def test_what_is_no_prompt(prompt: Any) -> None:
    with LLM("any") as model:
        with pytest.raises(RequestError, match=r"prompt must be a text, .*token ids \(whole numbers\)") as refused:
            model.generate(prompt, SHORT)
        assert "\n" not in str(refused.value)
        assert not model.engine.has_work


@pytest.mark.parametrize("messages", [None, [], 5, "hi", {}, {"role": "user"}, (0 for _ in ())], ids=str)
def test_what_is_no_conversation(messages: Any) -> None:
    with LLM("any") as model, pytest.raises(RequestError, match="messages must be a list such as"):
        model.chat(messages, SHORT)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ([], "2 prompts need one SamplingParams or 2 of them, got 0"),
        ({}, "params must be a SamplingParams, or a list of them, got {}"),
        (0, "params must be a SamplingParams, or a list of them, got 0"),
        ("ab", "params"),
        ((SHORT for _ in range(2)), "params"),
        ([SHORT, None], "params must be a SamplingParams, got None"),
        ([SHORT, 5], "params must be a SamplingParams, got 5"),
    ],
)
def test_what_are_no_params(params: Any, message: str) -> None:
    with LLM("any") as model:
        with pytest.raises(RequestError, match=message):
            model.generate(["a", "b"], params)
        with pytest.raises(RequestError, match="params must be a SamplingParams"):
            model.stream("a", params)
        with pytest.raises(RequestError, match="1 prompt needs one SamplingParams, got 2"):
            model.generate("a", [SHORT, SHORT])
        assert not model.engine.has_work


KNOWN = "known: cache, digest, priority, cache_salt, reuse, explain, retention, on_limit, num_first"


@pytest.mark.parametrize(
    ("error", "more", "message"),
    [
        (RequestError, {"retension": "window:64"}, f'unknown option "retension" of a request; {KNOWN}'),
        (RequestError, {"cache": "f32"}, "cache must be True or False, got 'f32'"),
        (RequestError, {"explain": np.zeros(2)}, "explain must be True or False, got array"),
        (RequestError, {"priority": "high"}, "priority must be a whole number, from .*, got 'high'"),
        (RequestError, {"cache_salt": 5}, "cache_salt must be a text, got 5"),
        (RequestError, {"num_first": -1}, "num_first must be from 0 to .* tokens, got -1"),
        (RequestError, {"on_limit": 3}, 'unknown on_limit "3"'),
        (SpecError, {"retention": 7}, 'retention takes a text such as "sinks:4.1020", or a RetentionSpec, got 7'),
    ],
)
def test_an_option_that_is_none_is_refused(error: type[Exception], more: dict[str, Any], message: str) -> None:
    with LLM("any") as model:
        uses = [
            lambda: model.generate("x", SHORT, **more),
            lambda: model.generate(["x", "y"], SHORT, **more),
            lambda: model.stream("x", SHORT, **more),
            lambda: model.chat([{"role": "user", "content": "x"}], SHORT, **more),
        ]
        for use in uses:
            with pytest.raises(error, match=message) as refused:
                use()
            assert "\n" not in str(refused.value)
        assert not model.engine.has_work
        with pytest.raises(RequestError, match="cache_salt must be a text, got 5"):
            model.beam_search("x", cache_salt=5)  # type: ignore[arg-type]


def test_a_requests_own_retention_is_a_text_or_a_spec_and_none_is_the_models() -> None:
    long = SamplingParams(max_tokens=40, ignore_eos=True)
    kept = RetentionSpec("window", 16)
    with LLM("any") as model, LLM("any", retention=kept) as windowed:
        for asked, dropped in ((None, 0), ("window:16", 24), (kept, 24)):
            more = {"retention": asked, "on_limit": None}
            assert model.generate("x", long, **more).dropped_tokens == dropped  # type: ignore[arg-type]
        assert windowed.generate("x", long, retention=None).dropped_tokens == 24
        assert windowed.generate("x", long, retention="all").dropped_tokens == 0
    with pytest.raises(RequestError, match="retention must be a RetentionSpec or None, got 'window:16'"):
        Request((1, 2), retention="window:16")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"retention": 5}, "retention takes a text"),
        ({"cache": "int4"}, r"cache takes a CacheSpec, got 'int4'; e.g. CacheSpec\('int4'\)"),
        ({"cache": None}, r"cache takes a CacheSpec, got None; e.g. CacheSpec\('int8'\)"),
    ],
)
def test_what_is_no_cache_and_no_retention_is_one_line(settings: dict[str, Any], message: str, fake: list) -> None:
    with pytest.raises(SpecError, match=message) as refused:
        LLM("any", **settings)
    assert "\n" not in str(refused.value)
    assert fake == []


def test_errors_name_settings_as_python_and_the_command_line_both_do() -> None:
    with LLM("any", context=32) as model:
        with pytest.raises(RequestError, match=r"raise context .or kv_budget.*take on_limit truncate") as refused:
            model.generate("x" * 40)
        assert "--" not in str(refused.value)


def test_weights_that_do_not_fit_are_refused(fake: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "available_memory", lambda: 10_000)
    files = fake_files()
    monkeypatch.setattr(type(files), "loaded_bytes", lambda *_: 20_000)
    with pytest.raises(CapacityError, match=r"the weights take 19.53 KiB and 9.77 KiB of memory are free"):
        LLM(files)
    assert fake == []


def test_little_memory_shortens_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "available_memory", lambda: 2 * 3 * 16 * 128)  # three blocks and as much again
    with LLM("any") as model:
        assert model.context_length == 48
        assert model.capacity.is_cut
        with pytest.raises(CapacityError) as refused:
            model.generate("x" * 49)
        one_block = 16 * 128
        for said in ("the context holds 48", f"needs {4 * one_block} bytes", f"has {3 * one_block}", "to kv_budget"):
            assert said in str(refused.value)
        assert model.generate("x" * 49, SHORT, on_limit="truncate").dropped_tokens > 0


def test_closing(fake: list) -> None:
    with LLM("any") as model:
        pass
    assert fake[0].is_closed
    assert model.files.checkpoint.is_closed
    model.close()
    for use in (lambda: model.generate("x"), lambda: model.logits([1]), lambda: model.stream("x")):
        with pytest.raises(RequestError, match="closed"):
            use()


def test_closing_ends_what_is_under_way() -> None:
    with LLM("any") as model:
        stream = model.stream("abc", SamplingParams(max_tokens=20, ignore_eos=True))
        next(iter(stream))
    assert list(stream) == []
    assert (stream.result.finish_reason, stream.result.generated_tokens) == ("cancelled", 1)
    stream.close()


def test_progress_names_the_parts_of_loading() -> None:
    parts: list[str] = []
    LLM("any", progress=parts.append).close()
    assert parts == ["weights", "cache", "kernels", "ready"]


def test_two_models_and_two_callers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake_spec(), step_s=0.001)
    with LLM("one") as one, LLM("two") as two:
        expected = {prompt: one.generate(prompt, SHORT).token_ids for prompt in ("a", "b", "c", "d")}
        found: dict[tuple[int, str], tuple[int, ...]] = {}

        def ask(number: int, prompt: str) -> None:
            found[number, prompt] = (one, two)[number % 2].generate(prompt, SHORT).token_ids

        threads = [threading.Thread(target=ask, args=(number, prompt)) for number in range(4) for prompt in expected]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 16
    assert all(token_ids == expected[prompt] for (_, prompt), token_ids in found.items())
